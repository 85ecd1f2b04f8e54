//! The objects of a topology as a flat list in the file's order, so that every reader after this is
//! a loop: a file nested a hundred thousand deep must not become a hundred thousand stack frames.

use std::str::FromStr;

use regatta_model::CpuSet;
use roxmltree::{Document, Node, ParsingOptions};

use super::error::{HwlocError, Place, shortened};
use super::mask;

/// A topology of a thousand CPUs has about two megabytes.
const MAX_BYTES: usize = 32 << 20;
/// Elements and the white space between them.
const MAX_NODES: u32 = 500_000;
/// Objects inside one another; real topologies have about twenty, each PCI bridge counting.
const MAX_DEPTH: u16 = 64;

/// What an object is, as far as Regatta cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Machine,
    Package,
    Numa,
    L3,
    Core,
    Cpu,
    Bridge,
    Pci,
    Os,
    /// Attached by the user; says nothing about hardware.
    Misc,
    /// Groups, dies and the other caches: they only contain.
    Container,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "Machine" => Kind::Machine,
            "Package" => Kind::Package,
            "NUMANode" => Kind::Numa,
            "L3Cache" => Kind::L3,
            "Core" => Kind::Core,
            "PU" => Kind::Cpu,
            "Bridge" => Kind::Bridge,
            "PCIDev" => Kind::Pci,
            "OSDev" => Kind::Os,
            "Misc" => Kind::Misc,
            _ => Kind::Container,
        }
    }

    /// Whether objects of this kind have CPUs of their own to be near to.
    pub(super) fn has_cpus(self) -> bool {
        !matches!(self, Kind::Bridge | Kind::Pci | Kind::Os | Kind::Misc)
    }
}

/// One `<object>`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) kind: Kind,
    /// Position of the object around it.
    pub(super) parent: Option<usize>,
    node: Node<'a, 'a>,
}

/// All objects of a topology; every one after the object around it.
pub(super) struct Tree<'a> {
    pub(super) objects: Vec<Object<'a>>,
    /// The format's major version: 2 or 3.
    pub(super) major: u32,
    topology: Node<'a, 'a>,
}

/// The XML as a tree, within limits.
pub(super) fn document(xml: &str) -> Result<Document<'_>, HwlocError> {
    if xml.len() > MAX_BYTES {
        return Err(HwlocError::TooLarge { bytes: xml.len(), limit: MAX_BYTES });
    }
    if let Some(at) = xml.find("<!ENTITY") {
        return Err(HwlocError::Entities { at: place_in(xml, at) });
    }
    // hwloc names its DTD in a DOCTYPE line; nothing is ever loaded for it.
    let options =
        ParsingOptions { allow_dtd: true, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).map_err(|error| match error {
        roxmltree::Error::NodesLimitReached => HwlocError::TooMany {
            at: place_in(xml, xml.len()),
            what: "XML nodes",
            limit: MAX_NODES as usize,
        },
        other => HwlocError::NotXml {
            at: other.pos().into(),
            // It ends in the place, which the message already starts with.
            why: shortened(other.to_string().trim_end_matches(&format!(" at {}", other.pos()))),
        },
    })
}

/// The place of a byte that is no node's.
fn place_in(text: &str, at: usize) -> Place {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    Place {
        line: 1 + before.bytes().filter(|&b| b == b'\n').count() as u32,
        column: 1 + before[line_start..].chars().count() as u32,
    }
}

impl<'a> Tree<'a> {
    pub(super) fn of(document: &'a Document<'a>) -> Result<Self, HwlocError> {
        let topology = document.root_element();
        let major = major(topology)?;
        let mut objects: Vec<Object<'a>> = Vec::new();
        let mut depths: Vec<u16> = Vec::new();
        // Each element's position in `objects`. An element that is no object, such as userdata,
        // hides what is inside it.
        let mut positions: Vec<Option<usize>> = Vec::new();
        for node in topology.descendants().filter(|n| n.has_tag_name("object")) {
            let around = node.parent_element().filter(|parent| *parent != topology);
            let parent = match around {
                None => None,
                Some(element) => match positions.get(element.id().get_usize()).copied().flatten() {
                    Some(position) => Some(position),
                    None => continue,
                },
            };
            let depth = parent.map_or(0, |p| depths[p] + 1);
            let object = Object { kind: kind(node)?, parent, node };
            if depth >= MAX_DEPTH {
                let what = "objects inside one another";
                return Err(HwlocError::TooMany {
                    at: object.place(),
                    what,
                    limit: MAX_DEPTH.into(),
                });
            }
            positions.resize(node.id().get_usize() + 1, None);
            positions[node.id().get_usize()] = Some(objects.len());
            depths.push(depth);
            objects.push(object);
        }
        Ok(Self { objects, major, topology })
    }

    /// The objects of one kind with their positions, in the file's order.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (usize, &Object<'a>)> {
        self.objects.iter().enumerate().filter(move |(_, o)| o.kind == kind)
    }

    /// The objects around one, innermost first.
    pub(super) fn around(&self, position: usize) -> impl Iterator<Item = (usize, &Object<'a>)> {
        let parent = |p: usize| self.objects.get(p).and_then(|o| o.parent);
        std::iter::successors(parent(position), move |&p| parent(p)).map(|p| (p, &self.objects[p]))
    }

    /// What hwloc says about the whole machine: version 2 at the outermost object, version 3 at the
    /// topology.
    pub(super) fn machine_info(&self, name: &str) -> Option<&'a str> {
        let machine = self.of_kind(Kind::Machine).find_map(|(_, o)| o.info(name));
        machine.or_else(|| info(self.topology, name))
    }

    /// The elements beside the outermost object that have this name.
    pub(super) fn extras(&self, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
        self.topology.children().filter(move |n| n.has_tag_name(name))
    }

    /// Where the topology starts.
    pub(super) fn place(&self) -> Place {
        place(self.topology)
    }
}

fn major(topology: Node<'_, '_>) -> Result<u32, HwlocError> {
    let at = place(topology);
    if !topology.has_tag_name("topology") {
        let found = shortened(topology.tag_name().name());
        return Err(HwlocError::NotHwloc { at, found });
    }
    // hwloc 1 wrote no version at all.
    let Some(version) = topology.attribute("version") else {
        return Err(HwlocError::OldFormat { at });
    };
    match version.split('.').next().and_then(|major| major.parse().ok()) {
        Some(0 | 1) => Err(HwlocError::OldFormat { at }),
        Some(major @ (2 | 3)) => Ok(major),
        _ => Err(HwlocError::UnknownFormat { at, version: shortened(version) }),
    }
}

fn kind(node: Node<'_, '_>) -> Result<Kind, HwlocError> {
    let missing =
        || HwlocError::Missing { at: place(node), object: "object".to_owned(), attribute: "type" };
    node.attribute("type").map(Kind::of).ok_or_else(missing)
}

/// Where an element starts.
pub(super) fn place(node: Node<'_, '_>) -> Place {
    node.document().text_pos_at(node.range().start).into()
}

fn info<'a>(node: Node<'a, 'a>, name: &str) -> Option<&'a str> {
    let infos = node.children().filter(|n| n.has_tag_name("info"));
    infos.filter(|n| n.attribute("name") == Some(name)).find_map(|n| n.attribute("value"))
}

impl<'a> Object<'a> {
    /// Where it starts.
    pub(super) fn place(&self) -> Place {
        place(self.node)
    }

    /// An attribute's text; an empty one counts as none.
    pub(super) fn text(&self, attribute: &'static str) -> Option<&'a str> {
        self.node.attribute(attribute).filter(|text| !text.is_empty())
    }

    /// An attribute's text, which must be there.
    pub(super) fn need(&self, attribute: &'static str) -> Result<&'a str, HwlocError> {
        let object = || shortened(self.node.attribute("type").unwrap_or("object"));
        let missing = || HwlocError::Missing { at: self.place(), object: object(), attribute };
        self.text(attribute).ok_or_else(missing)
    }

    /// A decimal attribute, if it is there.
    pub(super) fn number<T: FromStr>(
        &self,
        attribute: &'static str,
    ) -> Result<Option<T>, HwlocError> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.bad(attribute, "a number in range"))
    }

    /// The object's own number, which must be there.
    pub(super) fn os_index<T: FromStr>(&self) -> Result<T, HwlocError> {
        self.need("os_index")?;
        self.number("os_index")?.ok_or_else(|| self.bad("os_index", "a number in range"))
    }

    /// A set, if it is there.
    pub(super) fn set(&self, attribute: &'static str) -> Result<Option<CpuSet>, HwlocError> {
        let Some(text) = self.text(attribute) else { return Ok(None) };
        let wanted = "a mask like 0x000000ff,,0x0";
        mask::parse(text).map(Some).ok_or_else(|| self.bad(attribute, wanted))
    }

    /// One of the facts hwloc adds as `<info>`.
    pub(super) fn info(&self, name: &str) -> Option<&'a str> {
        info(self.node, name).filter(|value| !value.is_empty())
    }

    /// That an attribute does not read as wanted.
    pub(super) fn bad(&self, attribute: &'static str, wanted: &'static str) -> HwlocError {
        let node = self.node.attribute_node(attribute);
        let at = node.map(|a| self.node.document().text_pos_at(a.range().start).into());
        HwlocError::BadValue {
            at: at.unwrap_or_else(|| self.place()),
            object: shortened(self.node.attribute("type").unwrap_or("object")),
            attribute,
            value: shortened(self.node.attribute(attribute).unwrap_or_default()),
            wanted,
        }
    }
}
