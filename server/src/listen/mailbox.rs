//! Letters from any thread to one that sleeps in epoll.

use std::collections::VecDeque;
use std::io;

use crate::sync::{Mutex, PoisonError, Waker};

/// A letter box: any thread puts letters in, one is woken and takes them out.
pub struct Mailbox<T> {
    letters: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> Mailbox<T> {
    /// Empty.
    ///
    /// # Errors
    /// What the kernel says to one more file descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { letters: Mutex::default(), waker: Waker::new()? })
    }

    /// Puts a letter in and wakes the reader if the box was empty.
    pub fn post(&self, letter: T) {
        let was_empty = {
            let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
            letters.push_back(letter);
            letters.len() == 1
        };
        if was_empty {
            self.waker.wake();
        }
    }

    /// Moves every letter to the end of `into`; where that is empty, its room is used again.
    pub fn take(&self, into: &mut VecDeque<T>) {
        self.waker.drain();
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        if into.is_empty() {
            std::mem::swap(&mut *letters, into);
        } else {
            into.append(&mut letters);
        }
    }

    /// What wakes the reader: it belongs into its epoll.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}
