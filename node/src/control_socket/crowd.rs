//! Limits the connections on which no command has arrived yet.

use std::collections::VecDeque;

use tokio::task::AbortHandle;

/// The peer of a connection, from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Process id of the peer; 0 if the process is not visible in this pid namespace.
    pub(super) process: u32,
}

/// Connections, oldest first. Each user and process has a limit. Above it, the oldest connection of
/// the process with the most connections is closed, so that one process cannot block others.
#[derive(Default)]
pub(super) struct Crowd(VecDeque<(Peer, AbortHandle)>);

impl Crowd {
    /// Adds a connection, and closes another if there are too many.
    pub(super) fn enter(&mut self, peer: Peer, task: AbortHandle) {
        self.0.retain(|(_, task)| !task.is_finished());
        self.0.push_back((peer, task));
        let of_process = self.of_process(peer);
        let is_over = if self.0.iter().filter(|(one, _)| one.uid == peer.uid).count() > OF_USER {
            self.0.iter().filter(|(one, _)| one.uid == peer.uid).map(|(one, _)| self.of_process(*one)).max()
        } else {
            (peer.process != 0 && of_process > OF_PROCESS).then_some(of_process)
        };
        let Some(most) = is_over else { return };
        let is_first = |(one, _): &(Peer, AbortHandle)| one.uid == peer.uid && self.of_process(*one) == most;
        if let Some((_, task)) = self.0.iter().position(is_first).and_then(|at| self.0.remove(at)) {
            task.abort();
        }
    }

    fn of_process(&self, peer: Peer) -> usize {
        self.0.iter().filter(|(one, _)| *one == peer).count()
    }
}

/// Maximum number of connections of each user, and of each process.
const OF_USER: usize = 32;
const OF_PROCESS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until every aborted task has been polled.
    async fn until_ended() {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn processes_with_many_keep_no_other_out() {
        let mut crowd = Crowd::default();
        let mut enter = |uid, process| {
            let task = tokio::spawn(std::future::pending::<()>());
            crowd.enter(Peer { uid, process }, task.abort_handle());
            task
        };
        let (root, user) = (enter(0, 1), enter(7, 1));
        let many: Vec<_> = (0..400).map(|n| enter(0, 2 + n % 8)).collect();
        // Processes that are not visible count as one.
        let unseen: Vec<_> = (0..400).map(|_| enter(7, 0)).collect();
        until_ended().await;
        for (first, others) in [(root, many), (user, unseen)] {
            assert!(!first.is_finished());
            assert_eq!(1 + others.iter().filter(|task| !task.is_finished()).count(), OF_USER);
        }
    }

    #[tokio::test]
    async fn a_process_has_its_newest() {
        let mut crowd = Crowd::default();
        let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        for task in &tasks {
            crowd.enter(Peer { uid: 7, process: 7 }, task.abort_handle());
        }
        until_ended().await;
        let closed = tasks.iter().take_while(|task| task.is_finished()).count();
        assert_eq!(closed, 20 - OF_PROCESS);
        assert!(tasks[closed..].iter().all(|task| !task.is_finished()));
    }
}
