//! What there is of the rules, leases and addresses, in words and as JSON.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use node::Rules;
use serde_json::{Value, json};

use super::{DNS_PORT, Settings, listeners};
use configuration::House;

/// `localdns node status`.
#[derive(Debug)]
pub struct Report {
    rules: Result<bool, String>,
    holders: Vec<u32>,
    addresses: Vec<Address>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Address {
    ip: IpAddr,
    link: Option<String>,
    way_out: Option<IpAddr>,
    /// Whether anybody answers there, as a client of this node sees it.
    answers: bool,
}

impl Report {
    /// Looks at the machine.
    pub fn of(house: &House, settings: &Settings) -> Self {
        let (listeners, notes) = listeners(house, settings.masquerade);
        let (rules, holders) = match Rules::open() {
            Ok(mut rules) => {
                let holders = rules.holders().unwrap_or_default();
                (rules.are_there().map_err(|error| error.to_string()), holders)
            }
            Err(error) => (Err(error.to_string()), Vec::new()),
        };
        let addresses = listeners
            .into_iter()
            .map(|listener| Address {
                ip: listener.address,
                link: node::link_of(listener.address),
                way_out: listener.way_out.map(|way_out| way_out.target),
                answers: answers(listener.address),
            })
            .collect();
        Self { rules, holders, addresses, notes }
    }

    /// Whether all is as it should be while a server runs.
    pub fn is_well(&self) -> bool {
        self.rules == Ok(true)
            && !self.holders.is_empty()
            && self.addresses.iter().all(|address| address.link.is_some() && address.answers)
    }

    /// One object.
    pub fn json(&self) -> Value {
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .map(|address| {
                json!({
                    "address": address.ip,
                    "link": address.link,
                    "way_out": address.way_out,
                    "answers": address.answers,
                })
            })
            .collect();
        json!({
            "rules": self.rules.as_ref().ok(),
            "rules_error": self.rules.as_ref().err(),
            "lease_holders": self.holders,
            "addresses": addresses,
            "notes": self.notes,
            "well": self.is_well(),
        })
    }

    /// As a person reads it, with what mends what is wrong.
    pub fn text(&self) -> String {
        let mut text = match &self.rules {
            Ok(true) => "rules     in place\n".to_owned(),
            Ok(false) => {
                "rules     none; `localdns node up` puts them there, `node run` does once it answers\n"
                    .to_owned()
            }
            Err(error) => format!("rules     {error}\n"),
        };
        text += &match self.holders.as_slice() {
            [] => "leases    nobody has one: queries go the way out; start the server\n".to_owned(),
            pids => {
                let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
                format!("leases    process {}\n", pids.join(", "))
            }
        };
        for address in &self.addresses {
            let link = match &address.link {
                Some(link) => format!("on {link}"),
                None => "on no link; `localdns node up` adds it".to_owned(),
            };
            let way_out = match address.way_out {
                Some(way_out) => format!("way out {way_out}"),
                None => "no way out of its own".to_owned(),
            };
            let answers = if address.answers { "answers" } else { "does not answer" };
            text += &format!("address   {}  {link}, {way_out}, {answers}\n", address.ip);
        }
        for note in &self.notes {
            text += &format!("note      {note}\n");
        }
        text
    }
}

/// Asks for the root's name servers, as `dig . NS @ADDRESS`: whoever says anything answers.
fn answers(ip: IpAddr) -> bool {
    let asked = || -> std::io::Result<()> {
        let any: IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(SocketAddr::from((ip, DNS_PORT)))?;
        let query = [0x4c, 0x44, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
        socket.send(&query)?;
        socket.recv(&mut [0; 512]).map(drop)
    };
    (0..2).any(|_| asked().is_ok())
}

const PATIENCE: Duration = Duration::from_secs(2);
