// An application that owns MPI. It simulates the flow of heat in a ring, which the ranks of its communicator divide.
// After each step of the simulation it trains a model on the new temperatures. The model learns to predict the next
// temperature of a point from three points. So its weights become those of the difference scheme.
//
//   mpirun -n 4 heat [--steps N]
//
// convoy::Job takes the application's communicator. There is no supervisor: mpirun started the processes, the
// application calls MPI_Init and MPI_Finalize.
#include <torch/torch.h>

#include <convoy/convoy.h>
#include <convoy/mpi.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr double diffusion = 0.2;  // D · dt / dx²

// One rank's part of the ring: `values` has one point of each neighbour at its ends.
class Ring {
 public:
  Ring(MPI_Comm communicator, int64_t points) : communicator_(communicator), values_(torch::empty({points + 2})) {
    int rank = 0;
    MPI_Comm_rank(communicator, &rank);
    MPI_Cart_shift(communicator, 0, 1, &left_, &right_);
    for (int64_t i = 0; i < points; ++i) values_[i + 1] = std::sin(0.05 * double(rank * points + i)) + 0.1 * (i % 7);
  }

  // Advances by one step. Returns the three points around each one, [points, 3], and its new value, [points, 1].
  std::pair<torch::Tensor, torch::Tensor> advance() {
    const int64_t points = values_.size(0) - 2;
    float* value = values_.data_ptr<float>();
    MPI_Sendrecv(&value[points], 1, MPI_FLOAT, right_, 0, &value[0], 1, MPI_FLOAT, left_, 0, communicator_,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(&value[1], 1, MPI_FLOAT, left_, 1, &value[points + 1], 1, MPI_FLOAT, right_, 1, communicator_,
                 MPI_STATUS_IGNORE);
    const torch::Tensor around = values_.unfold(0, 3, 1).clone();
    const torch::Tensor weights = torch::tensor({diffusion, 1 - 2 * diffusion, diffusion}, torch::kFloat);
    const torch::Tensor next = around.matmul(weights);
    values_.slice(0, 1, points + 1).copy_(next);
    // Heating keeps the ring from becoming flat.
    values_.add_(0.3 * torch::randn_like(values_));
    return {around, next.unsqueeze(1)};
  }

 private:
  MPI_Comm communicator_;
  int left_ = 0, right_ = 0;
  torch::Tensor values_;
};

void simulate(MPI_Comm ring, int64_t steps) {
  convoy::Job job(ring);
  torch::manual_seed(uint64_t(job.rank()));
  Ring part(ring, 100 + 10 * job.rank());  // ranks may have different numbers of rows

  torch::nn::Linear net(3, 1);
  torch::optim::Adam optimizer(net->parameters(), 0.02);
  convoy::Replicas replicas(job, *net, optimizer);
  for (int64_t step = 1; step <= steps; ++step) {
    const auto [around, next] = part.advance();  // the application's own work and communication
    const torch::Tensor loss = (net->forward(around) - next).square().sum();
    replicas.step(loss, around.size(0));
    const convoy::Sum sum = job.sum(loss, double(around.size(0)));
    if (job.rank() == 0 && step % 100 == 0) std::printf("step %ld: loss %.2e\n", long(step), sum.mean());
  }

  const torch::Tensor learned = net->weight.flatten();
  const float difference =
      (learned - torch::tensor({diffusion, 1 - 2 * diffusion, diffusion})).abs().max().item<float>();
  if (job.rank() == 0)
    std::printf("learned weights %.4f %.4f %.4f, at most %.0e off\n", learned[0].item<float>(),
                learned[1].item<float>(), learned[2].item<float>(), double(difference));
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 1000;
  if (argc == 3 && std::strcmp(argv[1], "--steps") == 0) steps = std::stol(argv[2]);

  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm ring = MPI_COMM_NULL;
  const int periodic = 1;
  MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, /*reorder=*/1, &ring);
  simulate(ring, steps);
  MPI_Comm_free(&ring);
  MPI_Finalize();
}
