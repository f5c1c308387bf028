//! `nvme-tcp://HOST:PORT/NQN`: where a volume is reached.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use raidfabric_protocol::fabrics::nqn;

/// The port of NVMe/TCP subsystems where none is given.
const USUAL_PORT: u16 = 4420;

/// The form of a URL, for messages.
const FORM: &str = "write nvme-tcp://HOST:PORT/NQN, as in \
                    nvme-tcp://192.0.2.10:4420/nqn.2026-11.io.raidfabric:fast";

/// A subsystem at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// A numeric address or a name.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) nqn: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("this is no URL; {FORM}"));
        };
        if !scheme.eq_ignore_ascii_case("nvme-tcp") {
            return Err(format!("`{scheme}://` is not understood; {FORM}"));
        }
        let (place, nqn) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host_and_port(place)?;
        check_nqn(nqn, &host, port)?;
        Ok(Self { host, port, nqn: nqn.to_owned() })
    }
}

fn host_and_port(place: &str) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return Err(format!("the bracket of the address in `{place}` is not closed; {FORM}"));
        };
        if !matches!(host.parse(), Ok(IpAddr::V6(_))) {
            return Err(format!("`{host}` is no IPv6 address, and only those stand in brackets"));
        }
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':').unwrap_or(port)),
        };
        (host, port)
    } else if place.matches(':').count() > 1 {
        return Err(format!(
            "an IPv6 address stands in brackets, as in nvme-tcp://[::1]:{USUAL_PORT}/NQN"
        ));
    } else {
        match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    if host.is_empty() {
        return Err(format!("the host is missing; {FORM}"));
    }
    let port = match port {
        None => USUAL_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("`{port}` is no port; the usual one is {USUAL_PORT}")),
        },
    };
    Ok((host.to_owned(), port))
}

fn check_nqn(name: &str, host: &str, port: u16) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!(
            "the subsystem's NQN is missing at the end; {FORM} (`nvme discover -t tcp -a {host} -s \
             {port}` lists what is there)"
        ));
    }
    if name == nqn::DISCOVERY_NQN {
        return Err("the discovery subsystem has no volumes; give the NQN of one that has".into());
    }
    nqn::validate(name).map_err(|error| format!("`{name}` is no NQN: {error}"))
}

impl Url {
    /// The address, looked up if the host is a name.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(super) fn address(&self) -> Result<SocketAddr, String> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| format!("{}: {error}; give the numeric address", self.host))?;
        found.next().ok_or_else(|| format!("{} has no address", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.io.raidfabric:fast";

    #[test]
    fn what_is_understood() {
        for (place, host, port) in [
            ("127.0.0.1:4421", "127.0.0.1", 4421),
            ("192.0.2.10", "192.0.2.10", 4420),
            ("[::1]:4420", "::1", 4420),
            ("[2001:db8::1]", "2001:db8::1", 4420),
            ("storage.example:8009", "storage.example", 8009),
        ] {
            let url: Url = format!("nvme-tcp://{place}/{NQN}").parse().unwrap();
            assert_eq!(url, Url { host: host.into(), port, nqn: NQN.into() }, "{place}");
        }
        let url: Url = format!("NVMe-TCP://[::1]/{NQN}").parse().unwrap();
        assert_eq!(url.address(), Ok("[::1]:4420".parse().unwrap()));
        // Everything after the address is the name, slashes included.
        let url: Url = "nvme-tcp://[::1]/nqn.2026-11.io.x:a/b".parse().unwrap();
        assert_eq!(url.nqn, "nqn.2026-11.io.x:a/b");
    }

    #[test]
    fn mistakes_are_taught() {
        for (text, lesson) in [
            ("127.0.0.1:4420", "no URL; write nvme-tcp://HOST:PORT/NQN"),
            ("http://127.0.0.1/nqn.2026-11.io.x:a", "`http://` is not understood; write nvme-tcp"),
            ("nvme-tcp://", "the host is missing"),
            ("nvme-tcp://:4420/nqn.2026-11.io.x:a", "the host is missing"),
            ("nvme-tcp://127.0.0.1:4420", "nvme discover -t tcp -a 127.0.0.1 -s 4420"),
            ("nvme-tcp://127.0.0.1:4420/", "NQN is missing"),
            ("nvme-tcp://::1/nqn.2026-11.io.x:a", "in brackets, as in nvme-tcp://[::1]"),
            ("nvme-tcp://[::1/nqn.2026-11.io.x:a", "not closed"),
            ("nvme-tcp://[192.0.2.1]/nqn.2026-11.io.x:a", "no IPv6 address"),
            ("nvme-tcp://h:http/nqn.2026-11.io.x:a", "`http` is no port; the usual one is 4420"),
            ("nvme-tcp://h:0/nqn.2026-11.io.x:a", "`0` is no port"),
            ("nvme-tcp://h:70000/nqn.2026-11.io.x:a", "`70000` is no port"),
            ("nvme-tcp://h/fast", "`fast` is no NQN"),
            ("nvme-tcp://h/nqn.2014-08.org.nvmexpress.discovery", "has no volumes"),
        ] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(error.contains(lesson), "{text}: {error}");
        }
    }
}
