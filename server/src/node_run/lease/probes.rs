//! What comes of a round of probes.

use std::net::IpAddr;

use node::Listener;
use tokio::task::JoinSet;

/// Which addresses answered, and why the others did not: one whose probe did not end is silent, too.
pub(super) async fn heard(
    mut asked: JoinSet<(IpAddr, Result<(), String>)>,
    listeners: &[Listener],
) -> (Vec<IpAddr>, Vec<(IpAddr, String)>) {
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    while let Some(ended) = asked.join_next().await {
        match ended {
            Ok((address, Ok(()))) => answered.push(address),
            Ok((address, Err(why))) => silent.push((address, why)),
            Err(_) => {}
        }
    }
    for Listener { address, .. } in listeners {
        if !answered.contains(address) && silent.iter().all(|(other, _)| other != address) {
            silent.push((*address, format!("the probe of {address} panicked")));
        }
    }
    (answered, silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_whose_probe_panics_has_not_answered() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let listeners = [1, 2, 3].map(|last| Listener { address: address(last), way_out: None });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (answered, mut silent) = runtime.block_on(async {
            let mut asked = JoinSet::new();
            asked.spawn(async { panic!("as a fault would") });
            asked.spawn(async move { (address(2), Ok(())) });
            asked.spawn(async move { (address(3), Err("nobody".to_owned())) });
            heard(asked, &listeners).await
        });
        silent.sort();
        assert_eq!(answered, [address(2)]);
        let panicked = "the probe of 192.0.2.1 panicked".to_owned();
        assert_eq!(silent, [(address(1), panicked), (address(3), "nobody".to_owned())]);
    }
}
