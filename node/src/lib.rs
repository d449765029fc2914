//! The host around the server: links and addresses, owners of ports, firewall rules, resolv.conf
//! and systemd. Linux only.
//!
//! Must not know DNS messages, the Corefile or the query path, opens no socket that clients use,
//! and imports no crate of this workspace but `sockets`.

mod address;
mod address_monitor;
mod control_socket;
mod diagnosis;
mod escaped;
mod failover_rules;
mod firewall_conflicts;
mod interface;
mod iptables;
mod nameservers;
mod nft;
mod port_owner;
mod resolv_conf;
mod socket_addr;
mod source_ports;
mod subprocess;
mod systemd;
mod systemd_jobs;
mod time_wait;

use std::io;
use std::net::IpAddr;

pub use address::{
    AddressPolicy, EnsuredAddress, LINK, LinkFallback, LinkName, added_addresses, ensure_address,
    remove_addresses, remove_link,
};
pub use address_monitor::{watch_addresses, watch_removals};
pub use control_socket::{
    ControlCommand, ControlSocket, Doubt, ListenGuard, Peers, RunningServer, Unproven, remove_left_proofs,
};
pub use diagnosis::Diagnosis;
pub use escaped::escaped;
pub use failover_rules::{
    CILIUM_LINK, Clients, DeathDetection, Fallback, Leases, Listener, NetAdminProof, Rules, TABLE, TableState,
};
pub use firewall_conflicts::{FirewallConflict, unseen_filters};
pub use interface::{
    Address, Interface, addresses_of, has_address, interfaces, is_local, leads_to, link_index, link_name,
    link_of, with_link,
};
pub use iptables::{Iptables, iptables_rules, remove_iptables_rules};
pub use nameservers::{AddressText, ListText, Upstreams, Usable, WIRE_SERVER};
pub use nft::NftError;
pub use port_owner::{PortOwner, SocketKind, is_taken_over_udp, port_owner};
pub use resolv_conf::{MAX_NAME_SERVERS, name_servers, search_list};
pub use socket_addr::{address, host_and_port, port_number, socket_address, split_port};
pub use source_ports::SourcePorts;
pub use subprocess::run as run_program;
pub use systemd::Notifier;
pub use systemd_jobs::Job;
pub use time_wait::destroy_closed_connections;

/// An error of the host.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An address is on no interface, and localdns does not add it by its policy.
    #[error("address {address} is on no interface of this machine")]
    AddressAbsent {
        /// The address.
        address: IpAddr,
    },
    /// No permission to add an address; the message has the commands to do it by hand.
    #[error("not permitted to add {address} (CAP_NET_ADMIN); run: {}", address::commands(.address, .link))]
    NotPermitted {
        /// The address.
        address: IpAddr,
        /// The interface to which the address would be added.
        link: String,
    },
    /// An address is not on the interface named with it, or is still in duplicate address
    /// detection.
    #[error("address {address} is not on the interface {link:?}, or cannot be used yet")]
    AddressElsewhere {
        /// The address.
        address: IpAddr,
        /// The interface.
        link: String,
    },
    /// The kernel refused to add an address, for another reason than permission.
    #[error("cannot add {address}: {action}: {source}")]
    Add {
        /// The address.
        address: IpAddr,
        /// The step that failed, such as `set link up`.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused to remove our link.
    #[error("cannot remove the link of the listen addresses: {source}")]
    RemoveLink {
        /// The kernel's error.
        source: io::Error,
    },
    /// No interface has this name.
    #[error("no interface {name:?} on this machine; name one that `ip link` lists, or an IP address")]
    InterfaceAbsent {
        /// The name.
        name: String,
    },
    /// The kernel did not list its interfaces.
    #[error("cannot list the interfaces of this machine: {0}")]
    Interfaces(#[source] io::Error),
    /// The kernel did not list its links or its routes.
    #[error("cannot list the links and routes of this machine: {0}")]
    Routes(#[source] io::Error),
    /// The service manager's socket did not accept a message.
    #[error("cannot notify the service manager: {0}")]
    Notify(#[source] io::Error),
}
