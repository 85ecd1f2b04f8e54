/* Times MPI's collectives on f32, as bench/src/bin/collectives does: rank 0 prints one line
 * "operation bytes seconds" per size and round, maximum over the ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 5

static int ranks, rank;

static void run(const char *name, float *in, float *out, int count) {
  int part = count / ranks;
  if (!strcmp(name, "all-reduce")) {
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (!strcmp(name, "all-gather")) {
    MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (!strcmp(name, "reduce-scatter")) {
    MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (!strcmp(name, "broadcast")) {
    MPI_Bcast(in, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
}

static void timed(const char *name, float *in, float *out, int count, int repeats) {
  double slowest;
  for (int i = 0; i < 2; i++) run(name, in, out, count);
  for (int round = 0; round < ROUNDS; round++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < repeats; i++) run(name, in, out, count);
    double mine = (MPI_Wtime() - start) / repeats;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) printf("%s %ld %.9f\n", name, (long)count * 4, slowest), fflush(stdout);
  }
}

/* Arguments: pairs of repetitions per round and size in bytes: "repeats bytes ...". */
int main(int argc, char **argv) {
  const char *names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"};
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int n = 0; n < 4; n++) {
    for (int a = 1; a + 1 < argc; a += 2) {
      int repeats = atoi(argv[a]);
      long bytes = atol(argv[a + 1]);
      int count = (int)(bytes / sizeof(float));
      float *in = malloc(bytes), *out = malloc(bytes);
      for (int i = 0; i < count; i++) in[i] = 1.0f, out[i] = 0.0f;
      timed(names[n], in, out, count, repeats);
      free(in);
      free(out);
    }
  }
  MPI_Finalize();
  return 0;
}
