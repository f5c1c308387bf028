//! `listen:` and `discovery:`: addresses that can be bound side by side.

use std::net::{IpAddr, SocketAddr};

use super::Findings;
use crate::config::raw;
use crate::config::source::At;

/// The addresses of `listen` and of `discovery`.
pub(super) fn check(
    file: &raw::File,
    findings: &mut Findings<'_>,
) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let root = At::root();
    if file.listen.is_empty() {
        findings.error(
            &root.key("listen"),
            "there is no address to listen on",
            "add one, as in [\"192.0.2.10:4420\"]",
        );
    }
    let mut taken: Vec<(SocketAddr, &str)> = Vec::new();
    let mut list = |key: &'static str, texts: &[String], usual_port: u16| {
        let mut addresses = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let at = root.key(key).index(i);
            let Some(address) = parse(&at, text, usual_port, findings) else { continue };
            free(&at, address, &taken, findings);
            advise(&at, address, findings);
            taken.push((address, key));
            addresses.push(address);
        }
        addresses
    };
    let listen = list("listen", &file.listen, 4420);
    let discovery = list("discovery", &file.discovery, 8009);
    (listen, discovery)
}

fn parse(at: &At, text: &str, usual_port: u16, findings: &mut Findings<'_>) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let help = match bare.parse::<IpAddr>() {
        Ok(ip) => format!("add the port: {}", SocketAddr::new(ip, usual_port)),
        Err(_) if text.starts_with(':') || text.parse::<u16>().is_ok() => {
            format!(
                "write the address, too: 192.0.2.10:{usual_port}, or [::]:{usual_port} for all of them"
            )
        }
        Err(_) => format!(
            "write ADDRESS:PORT with a numeric address: 192.0.2.10:{usual_port} or [::1]:{usual_port}"
        ),
    };
    findings.error(at, format!("`{text}` is not an address with a port"), help);
    None
}

/// Refuses an address that cannot be bound beside the earlier ones.
fn free(at: &At, address: SocketAddr, taken: &[(SocketAddr, &str)], findings: &mut Findings<'_>) {
    if address.port() == 0 {
        return; // the kernel picks a free one each time
    }
    let clash = |other: &SocketAddr| {
        let same_family = other.is_ipv4() == address.is_ipv4();
        let same_ip = other.ip() == address.ip();
        let wildcard = other.ip().is_unspecified() || address.ip().is_unspecified();
        other.port() == address.port() && (same_ip || (same_family && wildcard))
    };
    let Some((other, key)) = taken.iter().find(|(other, _)| clash(other)) else { return };
    if *other == address {
        let help = match *key {
            "listen" => "addresses of `listen` answer discovery, too; remove this one",
            _ => "remove one of the two",
        };
        findings.error(at, format!("`{address}` is in `{key}` already"), help);
    } else {
        findings.error(
            at,
            format!("`{address}` and `{other}` cannot be bound both"),
            "an unspecified address takes the port of all addresses; list it alone, or list the others",
        );
    }
}

fn advise(at: &At, address: SocketAddr, findings: &mut Findings<'_>) {
    if address.port() == 0 {
        findings.warn(
            at,
            format!("`{address}` lets the kernel pick a port, another one at each start"),
            "give a port, unless this is a test",
        );
    }
    if address.ip().is_unspecified() {
        findings.warn(
            at,
            format!("`{address}` serves on every network that this machine is attached to"),
            "prefer the addresses of the storage network",
        );
    }
}
