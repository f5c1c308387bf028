//! What is said to a person: the configuration in a few lines, and the line to connect with.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::config::drives::Drives;
use crate::config::{Config, Hosts, format_bytes};

/// Arrays with their drives, and what is exported where.
pub fn configuration(config: &Config, drives: &[Drives]) -> String {
    let mut text = String::new();
    for (array, drives) in config.arrays.iter().zip(drives) {
        let chunk = match array.chunk_bytes {
            0 => String::new(),
            bytes => format!(", chunk {}", format_bytes(bytes)),
        };
        let members: Vec<_> = match drives {
            Drives::Paths(listed) => {
                let present = listed.present.iter().map(|path| path.display().to_string());
                present.chain(listed.absent.iter().map(ToString::to_string)).collect()
            }
            Drives::Arrays(leaves) => {
                let leaves = leaves.iter().filter_map(|leaf| config.arrays.get(*leaf));
                leaves.map(|leaf| format!("array {}", leaf.name)).collect()
            }
            Drives::Memory(sizes) => {
                sizes.iter().map(|&size| format!("{} of memory", format_bytes(size))).collect()
            }
        };
        let _ = writeln!(
            text,
            "array {}: {}{chunk}, {} members",
            array.name,
            array.level,
            members.len()
        );
        for member in members {
            let _ = writeln!(text, "  {member}");
        }
    }
    for subsystem in &config.subsystems {
        let hosts = match &subsystem.hosts {
            Hosts::Any => "any host".to_owned(),
            Hosts::Only(hosts) => format!("{} allowed", count(hosts.len(), "host")),
        };
        let _ = writeln!(
            text,
            "subsystem {}: {}, {hosts}",
            subsystem.nqn,
            count(subsystem.namespaces.len(), "namespace"),
        );
    }
    let addresses =
        |list: &[SocketAddr]| list.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "listens on {}", addresses(&config.listen));
    if !config.discovery.is_empty() {
        let _ = writeln!(text, "answers discovery on {}", addresses(&config.discovery));
    }
    text
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The command with which a host connects to a subsystem at an address.
pub fn connect_line(nqn: &str, address: SocketAddr) -> String {
    let ip = reachable(address.ip());
    format!("nvme connect -t tcp -a {ip} -s {} -n {nqn}", address.port())
}

/// For "every address", the one by which this host reaches others.
fn reachable(ip: IpAddr) -> IpAddr {
    if !ip.is_unspecified() {
        return ip;
    }
    // Connecting a datagram socket sends nothing; it only chooses the way.
    let (local, far) = match ip {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let chosen = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind(local)?;
        socket.connect(far)?;
        Ok(socket.local_addr()?.ip())
    };
    chosen().unwrap_or(match ip {
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connect_line_can_be_copied() {
        let line =
            connect_line("nqn.2026-11.io.raidfabric:fast", "192.0.2.10:4420".parse().unwrap());
        assert_eq!(
            line,
            "nvme connect -t tcp -a 192.0.2.10 -s 4420 -n nqn.2026-11.io.raidfabric:fast"
        );
        let line = connect_line("nqn.x", "[::1]:4421".parse().unwrap());
        assert_eq!(line, "nvme connect -t tcp -a ::1 -s 4421 -n nqn.x");
    }

    #[test]
    fn an_unspecified_address_is_never_printed() {
        for address in ["0.0.0.0:4420", "[::]:4420"] {
            let line = connect_line("nqn.x", address.parse().unwrap());
            assert!(!line.contains("-a 0.0.0.0") && !line.contains("-a :: "), "{line}");
        }
    }
}
