//! Labels of `metadata`: what a plugin tells of a query, by `plugin/name`.

/// Whether it is a label: a plugin, a slash, a name.
pub fn is_label(text: &str) -> bool {
    text.split_once('/').is_some_and(|(plugin, name)| !plugin.is_empty() && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_plugin_and_a_name() {
        for (text, is) in [
            ("plugin/LABEL", true),
            ("p/L", true),
            ("PLUGIN/LABEL/SUB-LABEL", true),
            ("LABEL", false),
            ("plugin.LABEL", false),
            ("/NO-PLUGIN", false),
            ("NO-NAME/", false),
            ("/", false),
            ("//", false),
        ] {
            assert_eq!(is_label(text), is, "{text}");
        }
    }
}
