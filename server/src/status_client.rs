//! `localdns status`: finds a running server's status.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use admin::AdminAddress;
use plugins::prometheus::PrometheusSpec;
use refresh::{DEFAULT_SOCKET, Shown};

use crate::cli::Flags;
use crate::corefile_source::{Origin, ValidatedConfig};

/// Returns the status of a running server: from `place`, a socket or an address with a port, if
/// given; else from the status socket, which has the most content; else from the metrics' address
/// of the given Corefile, or the default one.
///
/// # Errors
/// One line: the Corefile's problem, or that no server answers, with the places.
pub fn print(flags: &Flags, place: Option<PathBuf>) -> Result<String, String> {
    if let Some(place) = place {
        let text = place.to_str();
        if let Some(ip) = text.and_then(|text| text.parse::<IpAddr>().ok()).filter(|_| !place.exists()) {
            let address = SocketAddr::new(ip, PrometheusSpec::default().address.port);
            return Err(format!(
                "{ip} has no port: -status needs the address of the server's metrics, such as {address}"
            ));
        }
        let address = text.and_then(AdminAddress::from_text);
        return refresh::print(&address.map_or_else(|| vec![Shown::Socket(place)], pages));
    }
    if flags.conf.is_none() {
        let default = pages(PrometheusSpec::default().address);
        return refresh::print(&[vec![Shown::Socket(DEFAULT_SOCKET.into())], default].concat());
    }
    let origin = Origin::find(flags).map_err(|error| error.to_string())?;
    // The socket is queried before the Corefile is read, since a reload may have refused this
    // Corefile.
    let socket = origin.path().map(|corefile| Shown::SocketOf(DEFAULT_SOCKET.into(), corefile));
    let of_socket = refresh::print(socket.as_slice());
    if of_socket.is_ok() {
        return of_socket;
    }
    let spec =
        ValidatedConfig::first(&origin, flags.dns_port, false).map_err(|error| error.to_string())?.spec;
    let all = spec.blocks.iter().filter_map(|block| block.get::<PrometheusSpec>());
    let addresses: BTreeSet<AdminAddress> = all.map(|prometheus| prometheus.address).collect();
    let places: Vec<Shown> = addresses.into_iter().flat_map(pages).collect();
    if !places.is_empty() {
        return refresh::print(&places);
    }
    of_socket.map_err(|error| format!("the Corefile has no `prometheus` to show its status; {error}"))
}

fn pages(address: AdminAddress) -> Vec<Shown> {
    address.sockets().into_iter().map(Shown::Page).collect()
}
