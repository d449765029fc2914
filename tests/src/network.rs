//! Network namespaces beside the test's own: a veth to each, and code run inside them.

use std::fs::File;
use std::thread::{JoinHandle, Scope, ScopedJoinHandle};

use nix::sched::{CloneFlags, setns};

use crate::isolated::run;

/// Makes a network namespace with a veth to the test's own and a default route over it:
/// 10.`net`.0.2 and fd0`net`::2 in the new namespace, .1 and ::1 in the test's. For use within
/// [`isolated`](crate::isolated()) alone, with a private `/run`.
///
/// # Panics
/// When `ip` fails.
pub fn wire(name: &str, net: u8) {
    let script = format!(
        "ip netns add {name}
         ip link add v{net} type veth peer name e0 netns {name}
         ip link set v{net} up
         ip addr add 10.{net}.0.1/24 dev v{net}
         ip addr add fd0{net}::1/64 dev v{net} nodad
         ip netns exec {name} sh -c 'for f in all default; do echo 0 > /proc/sys/net/ipv6/conf/$f/accept_dad; done'
         ip -n {name} link set lo up
         ip -n {name} link set e0 up
         ip -n {name} addr add 10.{net}.0.2/24 dev e0
         ip -n {name} addr add fd0{net}::2/64 dev e0 nodad
         ip -n {name} route add default via 10.{net}.0.1
         ip -n {name} route add default via fd0{net}::1"
    );
    run("sh", &["-ec", &script]);
}

/// Runs `work` on a thread in a namespace; processes that it starts are in it, too.
pub fn within<T: Send + 'static>(
    namespace: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        enter(namespace);
        work()
    })
}

/// Like [`within`], on a scoped thread.
pub fn within_scope<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    namespace: Option<&'static str>,
    work: impl FnOnce() -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    scope.spawn(move || {
        if let Some(namespace) = namespace {
            enter(namespace);
        }
        work()
    })
}

fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("the namespace was made");
    setns(file, CloneFlags::CLONE_NEWNET).expect("root may enter it");
}
