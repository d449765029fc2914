//! Simulates a kernel that lacks a feature of this machine's.

use std::thread;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// Runs `work`, and all programs that it starts, without access to netfilter over netlink, as on a
/// kernel without nftables.
///
/// # Panics
/// When `work` does, and where the kernel has no seccomp.
pub fn without_nftables<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        // The filter applies to this thread and all processes that it starts.
        let thread = scope.spawn(|| {
            refuse_netfilter();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn refuse_netfilter() {
    let is = |argument, value: i32| {
        let value = u64::from(value.unsigned_abs());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
            .expect("a condition")
    };
    let socket = vec![is(0, libc::AF_NETLINK), is(2, libc::NETLINK_NETFILTER)];
    let rules = vec![SeccompRule::new(socket).expect("two conditions")];
    let refused = SeccompAction::Errno(libc::EPROTONOSUPPORT.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into().expect("this one is known");
    let rules = [(libc::SYS_socket, rules)].into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program).expect("the kernel has seccomp");
}
