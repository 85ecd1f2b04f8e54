//! The objects of a topology as a flat list in document order. All passes over it are loops,
//! because a file nested 100,000 levels deep must not overflow the stack.

use std::str::FromStr;

use regatta_model::CpuSet;
use roxmltree::{Document, Node, ParsingOptions};

use super::error::{HwlocError, Result, TextPosition, truncated};
use super::mask;

/// A topology of a thousand CPUs takes about 2 MB.
const MAX_BYTES: usize = 32 << 20;
/// XML nodes, including white space.
const MAX_NODES: u32 = 500_000;
/// Nesting depth. Real topologies reach about 20, including PCI bridges.
const MAX_DEPTH: usize = 64;

/// hwloc object types (`hwloc_obj_type_t`) that Regatta uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectType {
    Machine,
    Package,
    Numa,
    L3,
    Core,
    Pu,
    Bridge,
    Pci,
    Os,
    /// User annotation; no hardware.
    Misc,
    /// Groups, dies and other caches.
    Container,
}

impl ObjectType {
    fn of(name: &str) -> Self {
        match name {
            "Machine" => ObjectType::Machine,
            // hwloc 1 called packages sockets until 1.11.
            "Package" | "Socket" => ObjectType::Package,
            "NUMANode" => ObjectType::Numa,
            "L3Cache" => ObjectType::L3,
            "Core" => ObjectType::Core,
            "PU" => ObjectType::Pu,
            "Bridge" => ObjectType::Bridge,
            "PCIDev" => ObjectType::Pci,
            "OSDev" => ObjectType::Os,
            "Misc" => ObjectType::Misc,
            _ => ObjectType::Container,
        }
    }

    /// Whether objects of this type have a cpuset.
    pub(super) fn has_cpus(self) -> bool {
        !matches!(self, ObjectType::Bridge | ObjectType::Pci | ObjectType::Os | ObjectType::Misc)
    }
}

/// An `<object>` element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) kind: ObjectType,
    /// Index of the parent object.
    pub(super) parent: Option<usize>,
    node: Node<'a, 'a>,
}

/// All objects of a topology, parents before children.
pub(super) struct Topology<'a> {
    pub(super) objects: Vec<Object<'a>>,
    /// Major version of the format: 1, 2 or 3.
    pub(super) major: u32,
    root: Node<'a, 'a>,
}

/// Parses the XML, within limits.
pub(super) fn parse_xml(xml: &str) -> Result<Document<'_>> {
    if xml.len() > MAX_BYTES {
        return Err(HwlocError::TooLarge { bytes: xml.len(), limit: MAX_BYTES });
    }
    if let Some(at) = xml.find("<!ENTITY") {
        return Err(HwlocError::Entities { at: position_in(xml, at) });
    }
    // hwloc writes a DOCTYPE with its DTD, which is never loaded.
    let options =
        ParsingOptions { allow_dtd: true, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).map_err(|error| match error {
        roxmltree::Error::NodesLimitReached => {
            let at = position_in(xml, xml.len());
            HwlocError::TooMany { at, what: "XML nodes", limit: MAX_NODES as usize }
        }
        other => HwlocError::NotXml {
            at: other.pos(),
            // It ends with the position, which the message already starts with.
            why: truncated(other.to_string().trim_end_matches(&format!(" at {}", other.pos()))),
        },
    })
}

/// The position of a byte offset.
fn position_in(text: &str, at: usize) -> TextPosition {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let row = 1 + before.bytes().filter(|&b| b == b'\n').count() as u32;
    TextPosition::new(row, 1 + before[line_start..].chars().count() as u32)
}

impl<'a> Topology<'a> {
    pub(super) fn new(document: &'a Document<'a>) -> Result<Self> {
        let topology = document.root_element();
        let major = major(topology)?;
        let mut objects: Vec<Object<'a>> = Vec::new();
        let mut depths: Vec<usize> = Vec::new();
        // Index in `objects` by element ID. Objects inside other elements, such as userdata, are
        // skipped.
        let mut positions: Vec<Option<usize>> = Vec::new();
        for node in topology.descendants().filter(|n| n.has_tag_name("object")) {
            let element = node.parent_element().filter(|parent| *parent != topology);
            let parent = element.and_then(|e| *positions.get(e.id().get_usize())?);
            if element.is_some() && parent.is_none() {
                continue;
            }
            let depth = parent.map_or(0, |p| depths[p] + 1);
            let object = Object { kind: object_type(node)?, parent, node };
            if depth >= MAX_DEPTH {
                return Err(object.too_many("nested objects", MAX_DEPTH));
            }
            positions.resize(node.id().get_usize() + 1, None);
            positions[node.id().get_usize()] = Some(objects.len());
            depths.push(depth);
            objects.push(object);
        }
        Ok(Self { objects, major, root: topology })
    }

    /// The objects of a type with their indices, in document order.
    pub(super) fn of_type(&self, kind: ObjectType) -> impl Iterator<Item = (usize, &Object<'a>)> {
        self.objects.iter().enumerate().filter(move |(_, o)| o.kind == kind)
    }

    /// The ancestors of an object, innermost first.
    pub(super) fn ancestors(&self, position: usize) -> impl Iterator<Item = (usize, &Object<'a>)> {
        let parent = |p: usize| self.objects.get(p).and_then(|o| o.parent);
        std::iter::successors(parent(position), move |&p| parent(p)).map(|p| (p, &self.objects[p]))
    }

    /// An info attribute of the machine: on the root object in version 2, on the topology in
    /// version 3.
    pub(super) fn machine_info(&self, name: &str) -> Option<&'a str> {
        let machine = self.of_type(ObjectType::Machine).find_map(|(_, o)| o.info(name));
        machine.or_else(|| info(self.root, name))
    }

    /// The child elements of the topology with this name.
    pub(super) fn elements(&self, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
        self.root.children().filter(move |n| n.has_tag_name(name))
    }

    /// The first child element of the root object with this name.
    pub(super) fn machine_element(&self, name: &str) -> Option<Node<'a, 'a>> {
        self.objects.first()?.node.children().find(|n| n.has_tag_name(name))
    }

    /// Position of the topology.
    pub(super) fn position(&self) -> TextPosition {
        position(self.root)
    }
}

fn major(topology: Node<'_, '_>) -> Result<u32> {
    let at = position(topology);
    if !topology.has_tag_name("topology") {
        let found = truncated(topology.tag_name().name());
        return Err(HwlocError::NotHwloc { at, found });
    }
    // hwloc 1 wrote no version.
    let Some(version) = topology.attribute("version") else { return Ok(1) };
    match version.split('.').next().and_then(|major| major.parse().ok()) {
        Some(major @ (1..=3)) => Ok(major),
        _ => Err(HwlocError::UnknownFormat { at, version: truncated(version) }),
    }
}

fn object_type(node: Node<'_, '_>) -> Result<ObjectType> {
    let Some(name) = node.attribute("type") else {
        let (at, object) = (position(node), "object".to_owned());
        return Err(HwlocError::Missing { at, object, attribute: "type" });
    };
    // hwloc 1 has one type for all caches, with the level in an attribute.
    let level_3 = node.attribute("depth") == Some("3") && node.attribute("cache_size").is_some();
    Ok(match name {
        "Cache" if level_3 => ObjectType::L3,
        name => ObjectType::of(name),
    })
}

/// Position of an element.
pub(super) fn position(node: Node<'_, '_>) -> TextPosition {
    node.document().text_pos_at(node.range().start)
}

fn info<'a>(node: Node<'a, 'a>, name: &str) -> Option<&'a str> {
    let infos = node.children().filter(|n| n.has_tag_name("info"));
    infos.filter(|n| n.attribute("name") == Some(name)).find_map(|n| n.attribute("value"))
}

impl<'a> Object<'a> {
    pub(super) fn position(&self) -> TextPosition {
        position(self.node)
    }

    /// The text of an attribute; `None` if empty.
    pub(super) fn text(&self, attribute: &'static str) -> Option<&'a str> {
        self.node.attribute(attribute).filter(|text| !text.is_empty())
    }

    /// The text of a required attribute.
    pub(super) fn need(&self, attribute: &'static str) -> Result<&'a str> {
        let object = || truncated(self.node.attribute("type").unwrap_or("object"));
        let missing = || HwlocError::Missing { at: self.position(), object: object(), attribute };
        self.text(attribute).ok_or_else(missing)
    }

    /// An optional integer attribute.
    pub(super) fn integer<T: FromStr>(&self, attribute: &'static str) -> Result<Option<T>> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.bad(attribute, "an integer in range"))
    }

    /// The required OS index.
    pub(super) fn os_index<T: FromStr>(&self) -> Result<T> {
        self.need("os_index")?;
        self.integer("os_index")?.ok_or_else(|| self.bad("os_index", "an integer in range"))
    }

    /// An optional cpuset or nodeset.
    pub(super) fn set(&self, attribute: &'static str) -> Result<Option<CpuSet>> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        let expected = "a mask like 0x000000ff,,0x0";
        mask::parse(text).map(Some).ok_or_else(|| self.bad(attribute, expected))
    }

    /// An `<info>` attribute.
    pub(super) fn info(&self, name: &str) -> Option<&'a str> {
        info(self.node, name).filter(|value| !value.is_empty())
    }

    /// The error for an object with the index of another.
    pub(super) fn duplicate(&self, what: &'static str, number: u64) -> HwlocError {
        HwlocError::Duplicate { at: self.position(), what, number }
    }

    /// The error for an object beyond a limit.
    pub(super) fn too_many(&self, what: &'static str, limit: usize) -> HwlocError {
        HwlocError::TooMany { at: self.position(), what, limit }
    }

    /// The error for an invalid attribute value.
    pub(super) fn bad(&self, attribute: &'static str, expected: &'static str) -> HwlocError {
        let node = self.node.attribute_node(attribute);
        let at = node.map(|a| self.node.document().text_pos_at(a.range().start));
        HwlocError::BadValue {
            at: at.unwrap_or_else(|| self.position()),
            object: truncated(self.node.attribute("type").unwrap_or("object")),
            attribute,
            value: truncated(self.node.attribute(attribute).unwrap_or_default()),
            expected,
        }
    }
}
