//! Bugs on demand, in this crate's own tests alone: a query for `panic-PLACE.anything` panics there.

use wire::Name;

/// Panics if that is what `name` asks for.
pub(crate) fn at(place: &str, name: &Name) {
    if name.to_string().starts_with(&format!("panic-{place}.")) {
        panic!("on demand");
    }
}
