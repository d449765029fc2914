//! Runs a connection's work in turns of its client's address.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::client::Client;

/// Completes `work`; each step of it is a turn of the client's address, as hyper reads, decrypts
/// and parses within one.
pub(crate) async fn fairly<C: Client, F: Future>(client: &C, mut work: Pin<&mut F>) -> F::Output {
    loop {
        let turn = client.turn().await;
        let began = clock::now();
        let step = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        let is_over = client.spend(clock::now().saturating_duration_since(began));
        if let Poll::Ready(output) = step {
            return output;
        }
        if is_over {
            // The turn is held meanwhile. A wake-up of `work` may end the wait for others, so that
            // another step follows in any case.
            tokio::task::yield_now().await;
            continue;
        }
        drop(turn);
        let mut is_woken = false;
        // `work` has registered this task's waker in its step.
        poll_fn(|_| match std::mem::replace(&mut is_woken, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}
