// Time of collectives by size, compared with bare MPI in the same run.
//
//   mpirun -n 2 build/tests/bench/comm                # mpi compared with MPI_Allreduce; medians of interleaved rounds
//   build/tests/bench/comm local 2; build/tests/bench/comm gloo 2
//
// Prints per size: microseconds of all_reduce, of MPI_Allreduce, and their ratio; then the gain of overlap with
// computing.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "backends/registry.h"
#include "core/control/channel.h"

namespace {

using namespace convoy;
using Seconds = std::chrono::duration<double>;

int number(const char* name, int fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : fallback;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// MPI's all-reduce, from the library that the backend has loaded, because programs outside backends/ do not name MPI.
// Open MPI's handles are addresses of its global objects.
struct BareMpi {
  using AllReduce = int (*)(const void*, void*, int, void*, void*, void*);
  AllReduce call = reinterpret_cast<AllReduce>(dlsym(RTLD_DEFAULT, "MPI_Allreduce"));
  void* type = dlsym(RTLD_DEFAULT, "ompi_mpi_float");
  void* sum = dlsym(RTLD_DEFAULT, "ompi_mpi_op_sum");
  void* world = dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world");
  bool there() const { return call && type && sum && world; }
  void operator()(at::Tensor& tensor) const {
    call(reinterpret_cast<void*>(1) /* MPI_IN_PLACE */, tensor.data_ptr(), static_cast<int>(tensor.numel()), type, sum,
         world);
  }
};

double microseconds_each(int count, const std::function<void()>& action) {
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) action();
  return Seconds(std::chrono::steady_clock::now() - start).count() / count * 1e6;
}

void measure(Communicator& world, bool beside_mpi) {
  BareMpi bare;
  beside_mpi = beside_mpi && bare.there();
  if (world.rank() == 0)
    std::printf("%s, %d ranks\n%12s %12s %12s %8s\n", world.backend().c_str(), world.size(), "bytes", "us", "bare MPI",
                "ratio");
  for (int64_t bytes : {64, 4096, 32768, 450000, 4000000, 49000000, 100000000}) {
    at::Tensor tensor = at::zeros({bytes / 4});
    int count = static_cast<int>(std::clamp<int64_t>(100000000 / bytes, 5, 2000));
    std::vector<double> ours, theirs;
    for (int round = 0; round < 7; ++round) {
      world.barrier({})->wait();
      ours.push_back(microseconds_each(count, [&] { world.all_reduce(tensor, ReduceOp::sum, {})->wait(); }));
      if (!beside_mpi) continue;
      world.barrier({})->wait();
      theirs.push_back(microseconds_each(count, [&] { bare(tensor); }));
    }
    if (world.rank() != 0) continue;
    std::printf("%12ld %12.1f", static_cast<long>(bytes), median(ours));
    if (beside_mpi) std::printf(" %12.1f %8.2f", median(theirs), median(ours) / median(theirs));
    std::printf("\n");
    std::fflush(stdout);
  }
}

// A step like that of ddp: computing, with a bucket ready after each part of it.
void measure_overlap(Communicator& world) {
  constexpr int parts = 5;
  at::Tensor a = at::randn({512, 512}), product = at::empty({512, 512});
  std::vector<at::Tensor> buckets;
  for (int i = 0; i < parts; ++i) buckets.push_back(at::zeros({5000000}));
  auto compute = [&] {
    for (int i = 0; i < 8; ++i) at::mm_out(product, a, a);
  };
  auto step = [&](bool communicate, bool early) {
    std::vector<WorkPtr> works;
    auto launch = [&](int i) { works.push_back(world.all_reduce(buckets[i], ReduceOp::max, {"bucket"})); };
    for (int i = 0; i < parts; ++i) {
      compute();
      if (communicate && early) launch(i);
    }
    for (int i = 0; i < parts && communicate && !early; ++i) launch(i);
    for (auto& work : works) work->wait();
  };
  std::vector<double> alone, late, overlapped;
  for (int round = 0; round < 9; ++round) {
    world.barrier({})->wait();
    alone.push_back(microseconds_each(3, [&] { step(false, false); }));
    world.barrier({})->wait();
    late.push_back(microseconds_each(3, [&] { step(true, false); }));
    world.barrier({})->wait();
    overlapped.push_back(microseconds_each(3, [&] { step(true, true); }));
  }
  if (world.rank() != 0) return;
  std::printf("5 buckets of 20 MB, ms a step: computing alone %.1f, all-reduced at the end %.1f, overlapped %.1f\n",
              median(alone) / 1e3, median(late) / 1e3, median(overlapped) / 1e3);
}

}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  std::string backend = count > 1 ? words[1] : "mpi";
  int ranks = count > 2 ? std::atoi(words[2]) : 2;
  Registry registry;
  register_backends(registry);
  BackendRequest request;
  request.job = "bench";
  request.address = "127.0.0.1";
  request.channel = make_local_channel();
  if (backend == "mpi") {
    request.rank = number("OMPI_COMM_WORLD_RANK", 0);
    request.size = number("OMPI_COMM_WORLD_SIZE", 1);
    auto world = registry.backends.make(backend, request);
    measure(*world, true);
    measure_overlap(*world);
    return 0;
  }
  request.size = ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&registry, request, backend, rank]() mutable {
      request.rank = rank;
      at::set_num_threads(1);
      auto world = registry.backends.make(backend, request);
      measure(*world, false);
      measure_overlap(*world);
    });
  }
  for (auto& thread : threads) thread.join();
}
