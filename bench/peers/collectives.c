/* Times MPI's collectives on f32, as bench/src/bin/collectives does: rank 0 prints one line
 * "operation bytes seconds" per round, and "operation:first" for the first call; maximum over the
 * ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  } else if (!strcmp(name, "reduce")) {
    MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  } else if (!strcmp(name, "gather")) {
    MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (!strcmp(name, "scatter")) {
    MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (!strcmp(name, "all-to-all")) {
    MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (!strcmp(name, "barrier")) {
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void timed(const char *name, const char *label, float *in, float *out, long bytes,
                  int calls) {
  double slowest;
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < calls; i++) run(name, in, out, (int)(bytes / sizeof(float)));
  double mine = (MPI_Wtime() - start) / calls;
  MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%s%s %ld %.9f\n", name, label, bytes, slowest);
}

/* Arguments: names, comma-separated, then "warm-ups rounds calls bytes" for each size. */
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ",")) {
    for (int a = 2; a + 3 < argc; a += 4) {
      int warm_ups = atoi(argv[a]), rounds = atoi(argv[a + 1]), calls = atoi(argv[a + 2]);
      long bytes = atol(argv[a + 3]);
      float *in = malloc(bytes), *out = malloc(bytes);
      for (long i = 0; i < bytes / 4; i++) in[i] = 1.0f, out[i] = 0.0f;
      timed(name, ":first", in, out, bytes, 1);
      for (int i = 1; i < warm_ups; i++) run(name, in, out, (int)(bytes / sizeof(float)));
      for (int round = 0; round < rounds; round++) timed(name, "", in, out, bytes, calls);
      free(in);
      free(out);
    }
  }
  MPI_Finalize();
  return 0;
}
