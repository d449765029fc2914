//! The names that a directive applies to.

use wire::Name;

/// The zones of a directive, compared with the names of queries.
///
/// Most directives apply to the zones of their block, which contain every name. That is decided when the
/// block is built ([`crate::spec::BuildContext::scope`]), and then no names are compared.
#[derive(Debug, Clone)]
pub struct Scope(Option<Box<[Name]>>);

impl Scope {
    /// Every name.
    pub const ALL: Self = Self(None);

    /// Names within these zones.
    pub fn within(zones: &[Name]) -> Self {
        Self(Some(zones.into()))
    }

    /// Whether it contains every name.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it contains this name.
    #[inline]
    pub fn holds(&self, name: &Name) -> bool {
        self.0.as_ref().is_none_or(|zones| zones.iter().any(|zone| name.is_within(zone)))
    }
}
