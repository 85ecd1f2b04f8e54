//! Invalid files: one sentence with position and fix, within limits.

use regatta_discover::hwloc::{HwlocError, parse};

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/hwloc/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The error for a fixture with one text replaced.
fn error_after(name: &str, from: &str, to: &str) -> String {
    let text = fixture(name);
    assert!(text.contains(from), "{from} is not in {name}");
    match parse(&text.replacen(from, to, 1)) {
        Ok(machine) => panic!("{to} was accepted: {machine:?}"),
        Err(error) => error.to_string(),
    }
}

/// A topology with these objects, followed by other elements.
fn topology(objects: &str, extras: &str) -> String {
    format!(
        "<topology version=\"2.0\">\n<object type=\"Machine\" cpuset=\"0x3\">\n{objects}\n\
         </object>\n{extras}\n</topology>"
    )
}

const CPUS: &str = "<object type=\"PU\" os_index=\"0\"/>\n<object type=\"PU\" os_index=\"1\"/>";

#[test]
fn attribute_errors_have_name_and_position() {
    let complete = [
        (
            (r#"PU" os_index="0""#, r#"PU" os_index="x""#),
            r#"34:35: os_index="x" of the PU is not an integer in range; correct it or export the file again"#,
        ),
        (
            (r#"PU" os_index="0""#, r#"PU""#),
            r#"34:17: the PU has no "os_index"; export the file again with `lstopo --of xml`"#,
        ),
        (
            (r#"PU" os_index="1""#, r#"PU" os_index="0""#),
            "46:17: duplicate CPU 0; export the file again",
        ),
        (
            (r#"PU" os_index="1""#, r#"PU" os_index="16384""#),
            r#"46:35: os_index="16384" of the PU is not a CPU index below 16384; correct it or export the file again"#,
        ),
    ];
    for ((from, to), message) in complete {
        assert_eq!(error_after("small-vm", from, to), message);
    }
    let parts = [
        (r#"allowed_cpuset="0x00000003""#, r#"allowed_cpuset="3-""#, "is not a mask like"),
        ("0000:00:02.0", "00:02.0", "is not a PCI address like 0000:c1:00.0"),
        ("0180 [1af4:1042]", "0180 1af4", r#"pci_type="0180 1af4"#),
        ("0000:[00-00]", "0000", "is not a bus range like"),
        (r#"type="Package""#, r#"kind="Package""#, r#"the object has no "type""#),
        (r#"local_memory=""#, r#"local_memory="-"#, "local_memory"),
    ];
    for (from, to, part) in parts {
        let error = error_after("small-vm", from, to);
        assert!(error.contains(part), "{to}: {error}");
    }
}

#[test]
fn other_formats_are_rejected() {
    let error = |text: &str| parse(text).unwrap_err();
    let cases = [
        (
            "<topology version='2.0'/>",
            "1:1: the topology has no CPU (object type PU); export it without filters",
        ),
        (
            "<?xml version='1.0'?>\n<!DOCTYPE topology SYSTEM 'hwloc.dtd'>\n<topology/>",
            "3:1: the topology has no CPU (object type PU); export it without filters",
        ),
        (
            "<topology version='2.0'>\n <object></topology>",
            "2:10: not well-formed XML (expected 'object' tag, not 'topology'); export the file again with `lstopo --of xml`",
        ),
        (
            "<!DOCTYPE t [\n<!ENTITY a 'aaaa'>]><topology version='2.0'/>",
            "2:1: the file declares XML entities, which hwloc never does; remove them",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(text).to_string(), message);
    }
    assert!(matches!(error("<topology version=\"0.9\"/>"), HwlocError::UnknownFormat { .. }));
    assert!(matches!(error("<topology version=\"4.0\"/>"), HwlocError::UnknownFormat { .. }));
    assert!(matches!(error("<topology version=\"\"/>"), HwlocError::UnknownFormat { .. }));
    assert!(matches!(error("<html/>"), HwlocError::NotHwloc { .. }));
    assert!(matches!(error(""), HwlocError::NotXml { .. }));
    assert!(matches!(error("{\"format\": 1}"), HwlocError::NotXml { .. }));
}

#[test]
fn inconsistencies_are_rejected() {
    let twice = format!("{CPUS}{}", "<object type=\"NUMANode\" os_index=\"0\"/>".repeat(2));
    let error = parse(&topology(&twice, "")).unwrap_err();
    assert!(matches!(error, HwlocError::Duplicate { what: "NUMA node", number: 0, .. }), "{error}");
    let distances = |indexes: &str, values: &str| {
        let node = "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\"/>";
        let matrix = format!(
            "<distances2 type=\"NUMANode\" kind=\"5\" indexing=\"os\"><indexes>{indexes}</indexes>\
             <u64values>{values}</u64values></distances2>"
        );
        parse(&topology(&format!("{CPUS}{node}"), &matrix))
    };
    assert_eq!(distances("0", "10").unwrap().numa[0].distances, [10]);
    assert_eq!(
        distances("0", "10 20").unwrap_err().to_string(),
        "6:1: inconsistent distance matrix (1 objects but 2 values); remove the matrix, or export the \
         file again"
    );
    assert!(matches!(distances("x", "10"), Err(HwlocError::Distances { .. })));
    assert!(matches!(distances("0", "4294967296"), Err(HwlocError::Distances { .. })));
    // Distances of other NUMA nodes are not an error.
    assert!(distances("7", "10").unwrap().numa[0].distances.is_empty());
}

#[test]
fn deep_nesting_is_rejected() {
    let deep = |open: &str, close: &str| {
        topology(&format!("{}{}", open.repeat(100_000), close.repeat(100_000)), "")
    };
    let objects = parse(&deep("<object type=\"Group\">", "</object>")).unwrap_err();
    assert!(matches!(objects, HwlocError::TooMany { what: "nested objects", .. }));
    assert!(matches!(parse(&deep("<x>", "</x>")), Err(HwlocError::NoPu { .. })));
    let unclosed =
        format!("<topology version=\"2.0\">{}", "<object type=\"Group\">".repeat(100_000));
    assert!(matches!(parse(&unclosed), Err(HwlocError::NotXml { .. })));
}

#[test]
fn size_limits_are_enforced() {
    let spaces = " ".repeat(40 << 20);
    assert!(matches!(parse(&spaces), Err(HwlocError::TooLarge { .. })));
    let many = topology(&"<i/>".repeat(500_000), "");
    assert!(matches!(parse(&many), Err(HwlocError::TooMany { what: "XML nodes", .. })));
    let device = "<object type=\"PCIDev\" pci_busid=\"0000:00:00.0\" pci_type=\"0200 [0:0]\"/>";
    let many = topology(&format!("{CPUS}{}", device.repeat(16_385)), "");
    assert!(matches!(parse(&many), Err(HwlocError::TooMany { what: "PCI devices", .. })));
    let nic = "<object type=\"OSDev\" name=\"eth0\" osdev_type=\"2\"/>";
    let many = topology(&format!("{CPUS}{}", nic.repeat(1025)), "");
    assert!(matches!(parse(&many), Err(HwlocError::TooMany { what: "network interfaces", .. })));
}

#[test]
fn truncated_files_are_rejected() {
    let text = fixture("two-pvc");
    for end in (0..text.len()).step_by(7) {
        assert!(parse(&text[..end]).is_err(), "cut at {end}");
    }
}
