//! The structure of the caller's data, to detect a misspelt field when the template is parsed.

/// The shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schema {
    /// A structure: its fields and methods by name. The data of a template is one.
    Fields(Vec<(String, Self)>),
    /// A method that takes one string and returns a value of any shape.
    Method,
    /// A list of elements with one shape.
    List(Box<Self>),
    /// A map with text as keys. Only the listed keys are valid as fields; `index` may look up any
    /// key.
    Map {
        /// The valid keys; `None`: any.
        keys: Option<Vec<String>>,
        /// The shape of the values.
        values: Box<Self>,
    },
    /// Text, a number or a boolean.
    Scalar,
    /// A value with a shape that is known only when rendering.
    Any,
}

impl Schema {
    /// Creates the shape of a structure with these fields.
    pub fn fields<N: Into<String>>(fields: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Fields(fields.into_iter().map(|(name, shape)| (name.into(), shape)).collect())
    }

    /// Creates the shape of a list of values of one shape.
    pub fn list(elements: Self) -> Self {
        Self::List(Box::new(elements))
    }

    /// Creates the shape of a map with these keys and values of one shape.
    pub fn map<N: Into<String>>(keys: impl IntoIterator<Item = N>, values: Self) -> Self {
        Self::Map { keys: Some(keys.into_iter().map(Into::into).collect()), values: Box::new(values) }
    }

    /// Creates the shape of a map of any keys, with values of one shape.
    pub fn open_map(values: Self) -> Self {
        Self::Map { keys: None, values: Box::new(values) }
    }

    /// Returns the shape of the elements in `range` and `index`.
    pub(crate) fn element(&self) -> &Self {
        let element = match self {
            Self::List(element) => element,
            Self::Map { values, .. } => values,
            Self::Scalar => &Self::Scalar,
            Self::Fields(_) | Self::Method | Self::Any => &Self::Any,
        };
        // A method is no value, only a field.
        if *element == Self::Method { &Self::Any } else { element }
    }
}

/// Returns the name of `known` that is most similar to `name`: at most two edits (a swap of
/// neighbours is one) and fewer than half of the letters, case ignored.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<String> {
    let name = fold(name)?;
    known
        .filter_map(|candidate| Some((strsim::osa_distance(&name, &fold(candidate)?), candidate)))
        .filter(|(distance, _)| *distance <= 2 && distance * 2 < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

fn fold(name: &str) -> Option<String> {
    (name.len() <= LONGEST_COMPARED).then(|| name.to_lowercase())
}

/// Maximum bytes of a name to compare: the cost is quadratic.
const LONGEST_COMPARED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name() {
        let known = ["Name", "Zone", "Match", "Group", "Question"];
        for (name, expected) in [
            ("Nmae", Some("Name")),
            ("name", Some("Name")),
            ("Grop", Some("Group")),
            ("Qusetoin", Some("Question")),
            ("Message", None),
            ("N", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known.into_iter()).as_deref(), expected, "{name}");
        }
    }
}
