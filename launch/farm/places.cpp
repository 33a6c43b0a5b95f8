#include "launch/farm/places.h"

#include "launch/exit_codes.h"

namespace convoy {
namespace {

class LocalPlaces : public Places {
 public:
  LocalPlaces(EventLoop& loop, const Variables& variables, PlacesEvents events)
      : events_(std::move(events)),
        workplace_(loop, variables, {events_.on_line, events_.on_end, events_.on_samples, events_.on_over_limit}) {}

  void start(int, const PipelineOrder& order) override {
    try {
      events_.on_started(order.job, workplace_.start(order));
    } catch (const CannotExecute& error) {
      events_.on_refused(order.job, error.code(), error.what());
    } catch (const Error& error) {
      events_.on_refused(order.job, exit_code_of(error.kind()), error.what());
    }
  }
  void ask_to_stop(int job) override { workplace_.ask_to_stop(job); }
  void kill(int job) override { workplace_.kill(job); }

 private:
  PlacesEvents events_;
  Workplace workplace_;
};

}  // namespace

std::unique_ptr<Places> make_local_places(EventLoop& loop, const Variables& variables, PlacesEvents events) {
  return std::make_unique<LocalPlaces>(loop, variables, std::move(events));
}

}  // namespace convoy
