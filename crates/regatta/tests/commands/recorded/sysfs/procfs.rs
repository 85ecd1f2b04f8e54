//! Files about the kernel and the recorded process.

use regatta_model::{CpuSet, Machine};

use super::SysfsTree;

pub fn write(tree: &SysfsTree, machine: &Machine, online: &CpuSet) {
    tree.file("/proc/sys/kernel/hostname", &machine.host);
    tree.file("/proc/sys/kernel/osrelease", "5.14.21-150500.55.49_13.0.56-cray_shasta_c");
    tree.file("/etc/hostname", &machine.host);
    tree.file("/etc/resolv.conf", "nameserver 10.0.0.1");
    tree.file("/proc/cpuinfo", cpuinfo(machine, online));
    let kib: u64 = machine.numa.iter().map(|n| n.memory_bytes / 1024).sum();
    tree.file("/proc/meminfo", format!("MemTotal:       {kib} kB\nMemFree:        {kib} kB"));
    let nodes: CpuSet = machine.numa.iter().map(|n| n.id as usize).collect();
    let status = format!(
        "Name:\tregatta\nState:\tR (running)\nPid:\t4242\nThreads:\t1\n\
         Cpus_allowed_list:\t{online}\nMems_allowed_list:\t{nodes}"
    );
    tree.file("/proc/self/status", status);
    tree.file("/proc/self/cgroup", "0::/user.slice/user-1000.slice/session-7.scope");
    tree.file("/proc/self/limits", LIMITS);
    tree.file(
        "/proc/self/mounts",
        "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n\
         tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=263815172k,nr_inodes=65953793,inode64 0 0\n\
         cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0",
    );
    let huge = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    tree.file(&format!("{huge}/nr_hugepages"), 0);
    tree.file(&format!("{huge}/free_hugepages"), 0);
}

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max locked memory         unlimited            unlimited            bytes     
Max open files            16384                16384                files     ";

/// One paragraph per CPU; Arm kernels report IDs instead of names.
fn cpuinfo(machine: &Machine, online: &CpuSet) -> String {
    let model = machine.cpu_model.as_deref().unwrap_or("unknown");
    let paragraph = |cpu: usize| match model {
        "NVIDIA Grace" => format!(
            "processor\t: {cpu}\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n\
             CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n"
        ),
        name => format!(
            "processor\t: {cpu}\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 48\n\
             model name\t: {name}\ncpu MHz\t\t: 2000.000\n"
        ),
    };
    online.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}
