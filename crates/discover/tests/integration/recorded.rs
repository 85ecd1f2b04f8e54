//! Real machines, recorded by `scripts/record-machine.sh` and reduced to one file each: `== PATH`
//! starts a file, `-> PATH TARGET` is a symbolic link.

use std::path::{Path, PathBuf};

use regatta_discover::load;
use regatta_model::{Distance, GpuVendor, LinkState, NicKind};

/// An unpacked tree, removed on drop.
struct RecordedTree(PathBuf);

impl RecordedTree {
    fn unpack(name: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trees").join(name);
        let text = std::fs::read_to_string(file).unwrap();
        let tree =
            Self(std::env::temp_dir().join(format!("regatta-{name}-{}", std::process::id())));
        let _ = std::fs::remove_dir_all(&tree.0);
        let mut open: Option<(PathBuf, String)> = None;
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("== ") {
                tree.close(open.replace((tree.path(path), String::new())));
            } else if let Some((path, target)) =
                line.strip_prefix("-> ").and_then(|l| l.split_once(' '))
            {
                tree.close(open.take());
                std::os::unix::fs::symlink(target, tree.path(path)).unwrap();
            } else if let Some((_, content)) = &mut open {
                content.push_str(line);
                content.push('\n');
            }
        }
        tree.close(open);
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        let path = self.0.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn close(&self, file: Option<(PathBuf, String)>) {
        if let Some((path, content)) = file {
            std::fs::write(path, content).unwrap();
        }
    }
}

impl Drop for RecordedTree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A virtual machine with one H200. nvidia-smi reported one GPU at 0000:00:06.0, driver 580.159.04,
/// CPU affinity 0-15, NUMA affinity 0.
#[test]
fn h200_virtual_machine_is_loaded() {
    let tree = RecordedTree::unpack("h200-vm.tree");
    let machine = load(&tree.0).unwrap();
    assert_eq!(machine.host, "gpu-vm");
    assert_eq!((machine.packages.len(), machine.cores.len(), machine.l3.len()), (1, 16, 1));
    assert_eq!(machine.numa.len(), 1);
    assert_eq!(machine.software.nvidia_driver.as_deref(), Some("580.159.04"));
    assert_eq!(machine.os.domains, ["cluster.example.org"]);
    assert_eq!(machine.os.shm_bytes, Some(128 << 30));
    assert!(machine.os.memlock_known && machine.os.memlock_bytes.is_none(), "unlimited");

    let [gpu] = &machine.gpus[..] else { panic!("{} GPUs", machine.gpus.len()) };
    assert_eq!((gpu.vendor, gpu.name.as_str()), (GpuVendor::Nvidia, "NVIDIA H200"));
    assert_eq!((gpu.pci.as_deref(), gpu.numa), (Some("0000:00:06.0"), Some(0)));
    assert_eq!(gpu.cpus.to_string(), "0-15");
    assert_eq!(gpu.device_file.as_deref(), Some("/dev/nvidia0"));
    assert_eq!(gpu.accessible, None, "device files of a recorded machine are not opened");

    let [nic] = &machine.nics[..] else { panic!("{:?}", machine.nics) };
    assert_eq!((nic.name.as_str(), nic.kind), ("eth0", NicKind::Ethernet));
    assert_eq!(nic.state, LinkState::Up);
    assert_eq!(gpu.nic_distance, [Distance::Root]);
}
