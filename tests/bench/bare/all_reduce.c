/* MPI_Allreduce in a program that has nothing else: what the mpi backend is held against (tests/bench/comm.py).
 *
 *   mpirun -n 2 bare_all_reduce 4096 450000 49000000
 *
 * Prints for each size, in bytes: size, microseconds. As `convoy bench` times it: the median of five rounds that are begun
 * together, each of so many operations that it takes 20 ms, and of each round the slowest rank's time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { rounds = 5, most_iterations = 2000 };

static double timed(float* values, int count, long iterations) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (long i = 0; i < iterations; ++i) MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  double seconds = (MPI_Wtime() - start) / (double)iterations, slowest = 0;
  MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(long bytes, int rank) {
  int count = (int)(bytes / (long)sizeof(float));
  float* values = calloc((size_t)count, sizeof(float));
  if (values == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  timed(values, count, 2);
  long iterations = (long)(0.02 / timed(values, count, 3));
  iterations = iterations < 1 ? 1 : iterations > most_iterations ? most_iterations : iterations;
  double seconds[rounds];
  for (int round = 0; round < rounds; ++round) seconds[round] = timed(values, count, iterations);
  qsort(seconds, rounds, sizeof(double), ascending);
  if (rank == 0) printf("%ld %.3f\n", bytes, seconds[rounds / 2] * 1e6);
  free(values);
}

int main(int argc, char** argv) {
  int rank = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < argc; ++i) measure(atol(argv[i]), rank);
  MPI_Finalize();
  return 0;
}
