//! Which addresses regatta's own collectives use.

use regatta_model::machine::NicAddress;
use regatta_model::{Machine, Nic};

use crate::environment::EnvLine;
use crate::nic;

/// Where regatta's own collectives listen. Interfaces of one network reach each other, so each rank
/// has the one nearest to it; those of different networks may not, so all ranks have all of them.
pub(crate) fn bind(nics: &[Nic], nearest: Option<&str>) -> Option<EnvLine> {
    let address = |nic: &&Nic| {
        let v4 = nic.addresses.iter().find(|a| a.address.is_ipv4());
        v4.or(nic.addresses.first()).copied()
    };
    let node = Machine { nics: nics.to_vec(), ..Machine::default() };
    let usable = nic::sockets(&node);
    let all: Vec<NicAddress> = usable.iter().filter_map(address).collect();
    let first = all.first()?;
    let own = usable.iter().find(|nic| Some(nic.name.as_str()) == nearest).and_then(address);
    let (chosen, why) = match all.iter().all(|other| first.reaches(other.address)) {
        true => (vec![own.unwrap_or(*first)], "this rank's interface, for regatta's collectives"),
        false => (all, "one interface of each network, for regatta's collectives"),
    };
    let addresses: Vec<String> = chosen.iter().map(|a| a.address.to_string()).collect();
    Some(EnvLine::new("REGATTA_BIND", addresses.join(","), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::NicKind;

    fn bound(addresses: &[(&str, u8)], nic: &str) -> Option<String> {
        let nic_of = |(i, (address, prefix)): (usize, &(&str, u8))| {
            let address = address.parse().unwrap();
            let addresses = vec![NicAddress { address, prefix: *prefix }];
            Nic { addresses, ..Nic::new(&format!("hsn{i}"), NicKind::Slingshot) }
        };
        let nics: Vec<Nic> = addresses.iter().enumerate().map(nic_of).collect();
        bind(&nics, Some(nic))?.value
    }

    #[test]
    fn collectives_use_the_nearest_interface_or_one_of_each_network() {
        let one = [("10.1.0.1", 16), ("10.1.0.2", 16)];
        assert_eq!(bound(&one, "hsn1").as_deref(), Some("10.1.0.2"));
        assert_eq!(bound(&one, "other").as_deref(), Some("10.1.0.1"));
        let rails = [("10.1.0.1", 16), ("10.2.0.1", 16)];
        assert_eq!(bound(&rails, "hsn1").as_deref(), Some("10.1.0.1,10.2.0.1"));
        assert_eq!(bound(&[], "hsn0"), None);
    }
}
