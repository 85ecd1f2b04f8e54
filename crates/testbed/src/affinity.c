// Preloaded into programs of a host that claims more CPUs than the machine has. The kernel rejects
// affinity to CPUs that do not exist; this library stores masks in files and returns them as the
// kernel would.
//
// One file per thread, named by thread ID and start time (IDs are reused), in a directory private to
// each host. A thread without a file inherits the mask of its process, a process that of its parent,
// and the first process has all CPUs.
//
// Memory policies for nodes that do not exist are stored likewise: libnuma and others set them
// through libc's syscall().
//
// Direct system calls and /proc/<pid>/status show the real mask.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DIRECTORY "/dev/shm/.regatta-affinity"
#define GENERATIONS 64

// The last memory policy of Linux 5.15.
#define MPOL_PREFERRED_MANY 5

// File name suffix of each kind of setting.
#define CPUS ""
#define MEMORY "-memory"

struct memory {
    int mode;
    unsigned long nodes;
};

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

static int claimed(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 1;
}

static int claimed_cpus(void) {
    return claimed("REGATTA_TESTBED_CPUS");
}

// Reads a thread's own or inherited setting into `data`; 0 if there is none, -1 if there is no such
// thread.
static ssize_t load(int id, const char *kind, void *data, size_t size) {
    for (int i = 0; i < GENERATIONS && id > 0; i++) {
        struct task task;
        char path[128];
        if (look_up(id, &task))
            return i == 0 ? -1 : 0;
        snprintf(path, sizeof path, DIRECTORY "/%d-%llu%s", id, task.start, kind);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            ssize_t length = read(file, data, size);
            close(file);
            if (length > 0)
                return length;
        }
        id = id == task.process ? task.parent : task.process;
    }
    return 0;
}

static int store(int id, const char *kind, const void *data, size_t size) {
    struct task task;
    char path[128];
    if (look_up(id, &task))
        return ESRCH;
    mkdir(DIRECTORY, 01777);
    snprintf(path, sizeof path, DIRECTORY "/%d-%llu%s", id, task.start, kind);
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return EPERM;
    ssize_t written = write(file, data, size);
    close(file);
    return written == (ssize_t)size ? 0 : EPERM;
}

static int get_mask(int id, size_t size, cpu_set_t *mask) {
    if (size % sizeof(long) || size * 8 < (size_t)claimed_cpus())
        return EINVAL;
    memset(mask, 0, size);
    ssize_t found = load(id, CPUS, mask, size);
    if (found < 0)
        return ESRCH;
    for (int cpu = 0; found == 0 && cpu < claimed_cpus(); cpu++)
        CPU_SET_S(cpu, size, mask);
    return 0;
}

static int set_mask(int id, size_t size, const cpu_set_t *wanted) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    // As in the kernel, CPUs that do not exist are ignored, and at least one must remain.
    for (int cpu = 0; cpu < claimed_cpus() && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET_S(cpu, size, wanted))
            CPU_SET(cpu, &mask);
    return CPU_COUNT(&mask) == 0 ? EINVAL : store(id, CPUS, &mask, sizeof mask);
}

static int claimed_nodes(void) {
    return claimed("REGATTA_TESTBED_NUMA");
}

static int set_memory(int mode, const unsigned long *mask, unsigned long bits) {
    unsigned long all = (1ul << claimed_nodes()) - 1;
    unsigned long wanted = mask && bits > 1 ? *mask : 0;
    struct memory memory = {mode, wanted & all};
    // As in the kernel, an unknown mode changes nothing.
    if (mode < 0 || mode > MPOL_PREFERRED_MANY)
        return EINVAL;
    return wanted && !memory.nodes ? EINVAL : store(gettid(), MEMORY, &memory, sizeof memory);
}

static int get_memory(int *mode, unsigned long *mask, unsigned long bits) {
    struct memory memory = {0, 0};
    load(gettid(), MEMORY, &memory, sizeof memory);
    if (mode)
        *mode = memory.mode;
    if (mask) {
        memset(mask, 0, (bits + 63) / 64 * sizeof *mask);
        *mask = memory.nodes;
    }
    return 0;
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

// libc does not expose the ID of another thread, so only the calling one is supported.
int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *mask) {
    return pthread_equal(thread, pthread_self()) ? get_mask(gettid(), size, mask) : ENOSYS;
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *mask) {
    return pthread_equal(thread, pthread_self()) ? set_mask(gettid(), size, mask) : ENOSYS;
}

// libnuma would count the real nodes in /sys.
int numa_max_node(void) {
    return claimed_nodes() - 1;
}

long syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_set_mempolicy)
        return answer(set_memory((int)a[0], (const unsigned long *)a[1], a[2]));
    // With flags, the call queries addresses or the allowed nodes, not the thread's policy.
    if (number == SYS_get_mempolicy && a[4] == 0)
        return answer(get_memory((int *)a[0], (unsigned long *)a[1], a[2]));
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
