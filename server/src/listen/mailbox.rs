//! Letters from any thread to one that sleeps in epoll.

use std::collections::VecDeque;
use std::io;

use crate::sync::{Mutex, MutexGuard, PoisonError, Waker};

/// A letter box: any thread puts letters in, one is woken and takes them out.
///
/// Letters that strangers cause are bounded in number, by whoever says [`Mailbox::offer`]. Those that are posted always fit:
/// who posts them bounds them.
pub struct Mailbox<T> {
    letters: Mutex<Letters<T>>,
    waker: Waker,
}

struct Letters<T> {
    waiting: VecDeque<Waiting<T>>,
    /// How many of them were offered.
    offered: usize,
}

struct Waiting<T> {
    letter: T,
    offered: bool,
}

impl<T> Mailbox<T> {
    /// Empty.
    ///
    /// # Errors
    /// What the kernel says to one more file descriptor.
    pub fn new() -> io::Result<Self> {
        let letters = Letters { waiting: VecDeque::new(), offered: 0 };
        Ok(Self { letters: Mutex::new(letters), waker: Waker::new()? })
    }

    /// Puts a letter in and wakes the reader if the box was empty.
    pub fn post(&self, letter: T) {
        let letters = self.letters();
        self.put(letters, Waiting { letter, offered: false });
    }

    /// The same, unless `most` letters that were offered wait already.
    ///
    /// # Errors
    /// The letter, for which there is no room.
    pub fn offer(&self, letter: T, most: usize) -> Result<(), T> {
        let mut letters = self.letters();
        if letters.offered >= most {
            return Err(letter);
        }
        letters.offered += 1;
        self.put(letters, Waiting { letter, offered: true });
        Ok(())
    }

    /// Moves up to `most` letters to the end of `into`. Where more wait, the reader is woken at once for them: nobody else
    /// wakes it while the box is not empty.
    pub fn take(&self, into: &mut VecDeque<T>, most: usize) {
        self.waker.drain();
        let mut letters = self.letters();
        let count = letters.waiting.len().min(most);
        let mut offered = 0;
        into.extend(letters.waiting.drain(..count).map(|waiting| {
            offered += usize::from(waiting.offered);
            waiting.letter
        }));
        letters.offered -= offered;
        let left = !letters.waiting.is_empty();
        if !left {
            // As large as a crowd once made it, it would stay.
            letters.waiting.shrink_to(most);
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

    fn put(&self, mut letters: MutexGuard<'_, Letters<T>>, letter: Waiting<T>) {
        letters.waiting.push_back(letter);
        let was_empty = letters.waiting.len() == 1;
        drop(letters);
        if was_empty {
            self.waker.wake();
        }
    }

    fn letters(&self) -> MutexGuard<'_, Letters<T>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
