//! The names that a directive applies to.

use wire::Name;

/// The zones of a directive, compared with the names of queries.
///
/// Most directives apply to the zones of their block, which contain every name that reaches it.
/// This is detected when the block is built ([`crate::spec::BuildContext::scope`]); then no names
/// are compared.
#[derive(Debug, Clone)]
pub struct Scope(Option<Box<[Name]>>);

impl Scope {
    /// The scope that contains every name.
    pub const ALL: Self = Self(None);

    /// Creates the scope of the names within these zones.
    pub fn within(zones: &[Name]) -> Self {
        Self(Some(zones.into()))
    }

    /// Whether the scope contains every name.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the scope contains this name.
    #[inline]
    pub fn holds(&self, name: &Name) -> bool {
        self.0.as_ref().is_none_or(|zones| zones.iter().any(|zone| name.is_within(zone)))
    }
}
