// The whole file, described once: top-level keys, their sections, and which catalogue each component comes from.
#include "core/config/run_config.h"
#include "core/config/scalars.h"
#include "core/data/catalogue.h"
#include "core/describe.h"

namespace convoy {
namespace {

using describe::Description;

constexpr double month = 30 * 86400.0;  // seconds; longer waits are a slip of the unit

Description component(const std::string& kind, const std::string& help) {
  Description made = describe::option(OptionType::component, kind, help);
  made.catalogue = kind;
  return made;
}

Description or_auto(Description option) {
  option.also_auto = true;
  option.fallback = "auto";
  return option;
}

Description time_limit(const std::string& name, const std::string& help, Json fallback) {
  return describe::option(OptionType::duration, name, help, std::move(fallback)).above(0).at_most(month).in("seconds");
}

Option batch_section() {
  Description batch = describe::section("batch", "rows of a step; exactly one of its two keys",
                                        {describe::integer("global", "rows of a batch over all ranks")
                                             .at_least(1)
                                             .at_most(most_rows)
                                             .in("rows")
                                             .may_be_null(),
                                         describe::integer("per_rank", "rows of each data-parallel rank")
                                             .at_least(1)
                                             .at_most(most_rows)
                                             .in("rows")
                                             .may_be_null()});
  return batch.must();
}

Option train_section() {
  using describe::option;
  return describe::section(
             "train", "how long, in which batches, and what happens meanwhile",
             {describe::integer("epochs", "passes over the data; not limited by default where max_steps is given", 1)
                  .at_least(1)
                  .at_most(most_epochs)
                  .in("epochs")
                  .may_be_null(),
              describe::integer(
                  "max_steps",
                  "ends after so many steps, over as many epochs as they take; with epochs too, whichever "
                  "comes first ends the run")
                  .at_least(1)
                  .at_most(most_steps)
                  .in("steps"),
              batch_section(), option(OptionType::interval, "evaluate_every", "how often to evaluate", "1 epoch"),
              option(OptionType::interval, "checkpoint_every", "how often to save", "1 epoch"),
              describe::integer("keep_last", "checkpoints that are kept", 2).at_least(1).at_most(1 << 20),
              describe::text(
                  "resume",
                  "auto: continue an unfinished run of this name; never; or the path of a checkpoint or run "
                  "folder: continue from its state in a new folder, with other settings where the state fits",
                  "auto"),
              describe::integer("log_every", "steps between two lines of metrics", 100)
                  .at_least(1)
                  .at_most(most_steps)
                  .in("steps")})
      .must();
}

Option launch_section() {
  return describe::section(
      "launch", "processes, cores and time limits",
      {or_auto(describe::integer("ranks", "ranks to start; auto: the strategy chooses").at_least(1).at_most(65536)),
       or_auto(describe::integer("cores_per_rank", "cores of each rank; auto: all cores divided")
                   .at_least(1)
                   .at_most(65536)),
       or_auto(describe::integer("threads", "threads of an operation in each rank; auto: as many as its cores")
                   .at_least(1)
                   .at_most(65536)),
       describe::choice(
           "bind",
           "what a rank is bound to: its cores, their NUMA node or socket, or the cores of launch.cores; "
           "keep: just what mpirun or srun bound it to; convoy: its share of all cores of the job, whatever "
           "they bound it to",
           {"none", "core", "numa", "socket", "list", "keep", "convoy"}, "core"),
       describe::list("cores", "bind list: processing units of the first rank of a host, of the second, …",
                      describe::text("", "0-3, or 0+2")),
       time_limit("grace", "from TERM to KILL after a request to stop", 30),
       time_limit("failure_grace", "from TERM to KILL after a failure", 2),
       time_limit("heartbeat", "a rank that says nothing for so long is lost; at most launch.collective", 60),
       time_limit("collective", "a collective may take so long", 600),
       time_limit(
           "rendezvous",
           "all ranks must have met by then, and each part of their set-up must end in that time; reading data or "
           "a checkpoint may take longer while it makes progress",
           300),
       time_limit("step_timeout",
                  "a rank may stay so long in one place (a step, a batch of an evaluation, a checkpoint); ends endless "
                  "loops also where no other rank waits; off unless given",
                  nullptr)
           .may_be_null(),
       describe::choice(
           "check_collectives",
           "whether the ranks make sure that they call the same collectives: the first of each group, then "
           "now and then; all: each before it is begun, to find who differs, at the price of a message each",
           {"none", "sampled", "all"}, "sampled"),
       describe::boolean("host_memory",
                         "backends gloo and mpi: ranks of one host exchange tensors through memory that they share "
                         "instead of sockets or messages; and they keep one copy of row tables instead of one each",
                         true),
       describe::integer(
           "max_restarts",
           "after a failure all ranks start again from the newest checkpoint, so often; not under an outer "
           "mpirun or srun",
           0)
           .at_least(0)
           .at_most(1000),
       describe::option(OptionType::duration, "backoff",
                        "before a restart; doubled with each attempt that came no further, up to 10 minutes", 1)
           .at_least(0)
           .at_most(3600)
           .in("seconds"),
       or_auto(describe::text("address",
                              "numeric address of the interface that the control channel listens on, or a network "
                              "(10.0.0.0/16) that each host has an address in; auto: what all hosts share")),
       or_auto(describe::integer("port", "of the control channel; auto: any free one").at_least(1).at_most(65535)),
       describe::list("remote_shell",
                      "--hosts: program and options that execute a command on another host, as ssh does",
                      describe::text("", "a word of its command line"), Json{"ssh", "-oBatchMode=yes"})});
}

Option backend_option() {
  Description backend =
      describe::text("backend", "how ranks talk; auto: nccl for GPU ranks, mpi under mpirun, gloo otherwise", "auto");
  backend.catalogue = "backend";
  backend.also_auto = true;
  return backend;
}

std::vector<Option> described() {
  Description data = component("data", "the data set");
  data.options = common_data_options();
  return {
      describe::text("name", "of the run and of its folder: letters, digits, '.', '_', '-'").must(),
      describe::integer("seed", "of initial values, sampling and every random draw", 1).at_least(0),
      describe::choice("device", "where ranks compute; auto: GPUs where there are any", {"auto", "cpu", "cuda"},
                       "auto"),
      describe::choice("precision", "of activations and gradients", {"fp64", "fp32", "bf16", "fp16"}, "fp32"),
      describe::choice("randomness",
                       "exact: random draws do not depend on the layout; fast: one generator per rank; "
                       "auto: exact on the CPU, fast on GPUs",
                       {"auto", "exact", "fast"}, "auto"),
      describe::list("plugins", "libraries that register losses, data sets, transforms or models",
                     describe::text("", "absolute path of a shared library")),
      component("model", "what is trained; {plugin: /abs/libmine.so, …} loads one of your own").must(),
      data.must(),
      component("loss", "instead of the model's own loss"),
      component("optimizer", "how parameters follow their gradients").must(),
      component("strategy", "how the model is trained by many ranks").must(),
      backend_option(),
      train_section(),
      launch_section(),
      describe::section(
          "log", "what is written",
          {describe::choice("level", "the least that is written", {"debug", "info", "warning", "error"}, "info")}),
  };
}

}  // namespace

const std::vector<Option>& run_options() {
  static const std::vector<Option> options = described();
  return options;
}

}  // namespace convoy
