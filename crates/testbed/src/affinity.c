// Preloaded into programs of a host that claims more CPUs than the machine has. The kernel would
// refuse to bind to a CPU that does not exist; here masks are kept in files instead, and told as
// the kernel would tell them.
//
// One file per thread, named by its number and start time (numbers are reused), in a folder that
// every host has for itself. A thread without a file has the mask of its process, a process that of
// its parent, and the first process all CPUs.
//
// Programs that make the system call without libc, and /proc/<pid>/status, show the real mask.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/dev/shm/.regatta-affinity"
#define GENERATIONS 64

struct task {
    int parent;
    int process;
    unsigned long long start;
};

static int read_file(const char *path, char *buffer, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, buffer, size - 1);
    close(file);
    if (length < 0)
        return -1;
    buffer[length] = 0;
    return (int)length;
}

static int look_up(int id, struct task *task) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/stat", id);
    if (read_file(path, text, sizeof text) < 0)
        return -1;
    // The name in parentheses may itself hold any character.
    char *after = strrchr(text, ')');
    if (!after || sscanf(after + 2,
                         "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                         "%*d %llu",
                         &task->parent, &task->start) != 2)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/status", id);
    if (read_file(path, text, sizeof text) < 0)
        return -1;
    char *group = strstr(text, "\nTgid:");
    return group && sscanf(group, "\nTgid: %d", &task->process) == 1 ? 0 : -1;
}

static void mask_path(char *path, size_t size, int id, const struct task *task) {
    snprintf(path, size, FOLDER "/%d-%llu", id, task->start);
}

static int claimed_cpus(void) {
    const char *text = getenv("REGATTA_TESTBED_CPUS");
    return text ? atoi(text) : 1;
}

static int load(int id, size_t size, cpu_set_t *mask) {
    memset(mask, 0, size);
    for (int i = 0; i < GENERATIONS && id > 0; i++) {
        struct task task;
        char path[128];
        if (look_up(id, &task)) {
            if (i == 0)
                return ESRCH;
            break;
        }
        mask_path(path, sizeof path, id, &task);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            ssize_t length = read(file, mask, size);
            close(file);
            if (length > 0)
                return 0;
        }
        id = id == task.process ? task.parent : task.process;
    }
    for (int cpu = 0; cpu < claimed_cpus(); cpu++)
        CPU_SET_S(cpu, size, mask);
    return 0;
}

static int get_mask(int id, size_t size, cpu_set_t *mask) {
    if (size % sizeof(long) || size * 8 < (size_t)claimed_cpus())
        return EINVAL;
    return load(id, size, mask);
}

static int set_mask(int id, size_t size, const cpu_set_t *wanted) {
    struct task task;
    char path[128];
    cpu_set_t mask;
    CPU_ZERO(&mask);
    // As the kernel does: CPUs that do not exist are left out, and one at least must remain.
    for (int cpu = 0; cpu < claimed_cpus() && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET_S(cpu, size, wanted))
            CPU_SET(cpu, &mask);
    if (CPU_COUNT(&mask) == 0)
        return EINVAL;
    if (look_up(id, &task))
        return ESRCH;
    mkdir(FOLDER, 01777);
    mask_path(path, sizeof path, id, &task);
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return EPERM;
    ssize_t written = write(file, &mask, sizeof mask);
    close(file);
    return written == sizeof mask ? 0 : EPERM;
}

static int answer(int error) {
    if (!error)
        return 0;
    errno = error;
    return -1;
}

int sched_getaffinity(pid_t id, size_t size, cpu_set_t *mask) {
    return answer(get_mask(id ? id : gettid(), size, mask));
}

int sched_setaffinity(pid_t id, size_t size, const cpu_set_t *mask) {
    return answer(set_mask(id ? id : gettid(), size, mask));
}

// libc tells nobody the number of another thread, so only the calling one is served.
int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *mask) {
    return pthread_equal(thread, pthread_self()) ? get_mask(gettid(), size, mask) : ENOSYS;
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *mask) {
    return pthread_equal(thread, pthread_self()) ? set_mask(gettid(), size, mask) : ENOSYS;
}
