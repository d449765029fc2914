//! Letters from any thread to one that sleeps in epoll.

use std::collections::VecDeque;
use std::io;

use crate::sync::{Mutex, MutexGuard, PoisonError, Waker};

/// A letter box: any thread puts letters in, one is woken and takes them out. Whoever posts bounds what waits.
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
        Ok(Self { letters: Mutex::new(VecDeque::new()), waker: Waker::new()? })
    }

    /// Puts a letter in and wakes the reader if the box was empty.
    pub fn post(&self, letter: T) {
        let mut letters = self.letters();
        letters.push_back(letter);
        let was_empty = letters.len() == 1;
        drop(letters);
        if was_empty {
            self.waker.wake();
        }
    }

    /// Moves up to `most` letters to the end of `into`. Where more wait, the reader is woken at once for them: nobody else
    /// wakes it while the box is not empty.
    pub fn take(&self, into: &mut VecDeque<T>, most: usize) {
        self.waker.drain();
        let mut letters = self.letters();
        let count = letters.len().min(most);
        into.extend(letters.drain(..count));
        let left = !letters.is_empty();
        if !left {
            // As large as a crowd once made it, it would stay.
            letters.shrink_to(most);
        }
        drop(letters);
        if left {
            self.waker.wake();
        }
    }

    /// What wakes the reader: it belongs into its epoll.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    fn letters(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
