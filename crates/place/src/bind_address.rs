//! Bind addresses of Regatta's collectives.

use regatta_model::machine::NicAddress;
use regatta_model::{Machine, Nic};

use crate::environment::{EnvVar, var};
use crate::nic;

/// `REGATTA_BIND`. Interfaces of one subnet reach each other, so each rank uses its closest one;
/// interfaces of different subnets may not, so all ranks use all of them.
pub(crate) fn regatta_bind(nics: &[Nic], closest: Option<&str>) -> Option<EnvVar> {
    let address = |nic: &&Nic| {
        let v4 = nic.addresses.iter().find(|a| a.address.is_ipv4());
        v4.or(nic.addresses.first()).copied()
    };
    let node = Machine { nics: nics.to_vec(), ..Machine::default() };
    let usable = nic::socket_interfaces(&node);
    let all: Vec<NicAddress> = usable.iter().filter_map(address).collect();
    let first = all.first()?;
    let own = usable.iter().find(|nic| Some(nic.name.as_str()) == closest).and_then(address);
    let (chosen, why) = match all.iter().all(|other| first.same_subnet(other.address)) {
        true => (vec![own.unwrap_or(*first)], "interface of this rank, for Regatta's collectives"),
        false => (all, "one interface per subnet, for Regatta's collectives"),
    };
    let addresses: Vec<String> = chosen.iter().map(|a| a.address.to_string()).collect();
    Some(var("REGATTA_BIND", addresses.join(","), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::NicKind;

    fn bind_value(addresses: &[(&str, u8)], nic: &str) -> Option<String> {
        let nic_of = |(i, (address, prefix)): (usize, &(&str, u8))| {
            let address = address.parse().unwrap();
            let addresses = vec![NicAddress { address, prefix: *prefix }];
            Nic { addresses, ..Nic::new(&format!("hsn{i}"), NicKind::Slingshot) }
        };
        let nics: Vec<Nic> = addresses.iter().enumerate().map(nic_of).collect();
        regatta_bind(&nics, Some(nic))?.value
    }

    #[test]
    fn bind_uses_the_closest_interface_or_one_per_subnet() {
        let one = [("10.1.0.1", 16), ("10.1.0.2", 16)];
        assert_eq!(bind_value(&one, "hsn1").as_deref(), Some("10.1.0.2"));
        assert_eq!(bind_value(&one, "other").as_deref(), Some("10.1.0.1"));
        let rails = [("10.1.0.1", 16), ("10.2.0.1", 16)];
        assert_eq!(bind_value(&rails, "hsn1").as_deref(), Some("10.1.0.1,10.2.0.1"));
        assert_eq!(bind_value(&[], "hsn0"), None);
    }
}
