//! How far a cluster's zone has been told, in the words of who sends it.

use ::kubernetes::Told;
use plugin::messages::Next;

/// What comes after the message that a zone has been told to so far.
pub(crate) fn after(told: Told) -> Next {
    match told {
        Told::Full => Next::More,
        Told::Paused => Next::Later,
        Told::All => Next::End,
    }
}
