//! Parses and formats rules of iptables.

use std::net::IpAddr;

/// One rule, without a command such as -A.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) table: Table,
    /// Chain and matches, as `iptables -S` prints them.
    pub(super) text: String,
    /// `text` in a canonical form for comparisons: see [`options`].
    options: Vec<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Raw,
    Filter,
}

impl Table {
    pub(super) const BOTH: [Self; 2] = [Self::Raw, Self::Filter];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Filter => "filter",
        }
    }

    /// Returns the chains of this table that have our rules.
    pub(super) fn chains(self) -> [&'static str; 2] {
        match self {
            Self::Raw => ["PREROUTING", "OUTPUT"],
            Self::Filter => ["INPUT", "OUTPUT"],
        }
    }
}

/// Compares rules by options, since versions of iptables print matches in different orders.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.table == other.table && self.options == other.options
    }
}

impl Rule {
    fn new(table: Table, text: String) -> Self {
        let options = options(&text);
        Self { table, text, options }
    }

    /// Parses a line of `iptables -S`; `None` if it is no rule.
    pub(super) fn read(table: Table, line: &str) -> Option<Self> {
        Some(Self::new(table, line.strip_prefix("-A ")?.to_owned()))
    }

    pub(super) fn has_comment_of_ours(&self) -> bool {
        let comment = |option: &Vec<String>| match option.as_slice() {
            [flag, comment] if flag == "--comment" => COMMENTS.contains(&comment.as_str()),
            _ => false,
        };
        self.options.iter().any(comment)
    }
}

/// Returns chain and options, sorted, each with its values; without `-m MATCH`, which other options
/// imply.
fn options(text: &str) -> Vec<Vec<String>> {
    // `-j CT --notrack` and `-j NOTRACK` are the same rule.
    let text = text.replace("-j CT --notrack", "-j NOTRACK");
    let mut options: Vec<Vec<String>> = vec![Vec::new()];
    for word in words(&text) {
        match options.last_mut() {
            Some(option) if !word.starts_with('-') => option.push(word),
            _ => options.push(vec![word]),
        }
    }
    options.retain(|option| option.first().is_some_and(|flag| flag != "-m"));
    options.sort();
    options
}

/// Splits a text into words, like a shell; text in double quotes is one word.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    for character in text.chars() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// Returns the four rules of AKS's script for an address.
pub(super) fn localdns(ip: IpAddr) -> impl Iterator<Item = Rule> {
    let to = host(ip);
    chains_and_transports(["PREROUTING", "OUTPUT"]).map(move |(chain, transport)| {
        Rule::new(
            Table::Raw,
            format!("{chain} -d {to} -p {transport} -m comment --comment \"{LOCALDNS}\" -m {transport} --dport 53 -j NOTRACK"),
        )
    })
}

/// Returns two further rules for an address, of another version of AKS's script.
pub(super) fn answers(ip: IpAddr) -> impl Iterator<Item = Rule> {
    let from = host(ip);
    chains_and_transports(["OUTPUT"]).map(move |(chain, transport)| {
        Rule::new(
            Table::Raw,
            format!("{chain} -s {from} -p {transport} -m comment --comment \"{LOCALDNS}\" -m {transport} --sport 53 -j NOTRACK"),
        )
    })
}

/// Returns node-cache's twelve rules for an address.
pub(super) fn node_cache(ip: IpAddr, health: u16) -> impl Iterator<Item = Rule> {
    let host = host(ip);
    let rows = [
        (Table::Raw, "PREROUTING", "-d", "--dport", 53),
        (Table::Filter, "INPUT", "-d", "--dport", 53),
        (Table::Raw, "OUTPUT", "-s", "--sport", 53),
        (Table::Filter, "OUTPUT", "-s", "--sport", 53),
        (Table::Raw, "OUTPUT", "-d", "--dport", 53),
        (Table::Raw, "OUTPUT", "-d", "--dport", health),
        (Table::Raw, "OUTPUT", "-s", "--sport", health),
    ];
    rows.into_iter().enumerate().flat_map(move |(row, (table, chain, end, ports, port))| {
        let host = host.clone();
        let transports: &[&str] = if row < 5 { &["tcp", "udp"] } else { &["tcp"] };
        let (comment, target) = match table {
            Table::Raw => (SKIP, "NOTRACK"),
            Table::Filter => (ALLOW, "ACCEPT"),
        };
        transports.iter().map(move |transport| {
            Rule::new(
                table,
                format!("{chain} {end} {host} -p {transport} -m {transport} {ports} {port} -m comment --comment \"{comment}\" -j {target}"),
            )
        })
    })
}

fn chains_and_transports<const N: usize>(
    chains: [&'static str; N],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    chains.into_iter().flat_map(|chain| ["tcp", "udp"].map(|transport| (chain, transport)))
}

fn host(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}

const LOCALDNS: &str = "localdns: skip conntrack";
const SKIP: &str = "NodeLocal DNS Cache: skip conntrack";
const ALLOW: &str = "NodeLocal DNS Cache: allow DNS traffic";
pub(super) const COMMENTS: [&str; 3] = [LOCALDNS, SKIP, ALLOW];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rules_in_any_notation() {
        let own = |chain: &str| {
            let mut rules = localdns("169.254.10.10".parse().expect("an address"));
            rules.find(|rule| rule.text.starts_with(chain)).expect("a rule of that chain")
        };
        for (line, same) in [
            (
                r#"-A OUTPUT -d 169.254.10.10/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK"#,
                true,
            ),
            (
                r#"-A OUTPUT -d 169.254.10.10/32 -p tcp -m tcp --dport 53 -m comment --comment "localdns: skip conntrack" -j CT --notrack"#,
                true,
            ),
            (
                r#"-A PREROUTING -d 169.254.10.10/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK"#,
                false,
            ),
            (
                r#"-A OUTPUT -d 169.254.10.10/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 5 -j NOTRACK"#,
                false,
            ),
            (
                r#"-A OUTPUT ! -d 169.254.10.10/32 -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK"#,
                false,
            ),
            (r#"-A OUTPUT -d 169.254.10.10/32 -p tcp -m tcp --dport 53 -j NOTRACK"#, false),
            (
                r#"-A OUTPUT -d 169.254.10.10/32 -i lo -p tcp -m comment --comment "localdns: skip conntrack" -m tcp --dport 53 -j NOTRACK"#,
                false,
            ),
        ] {
            let read = Rule::read(Table::Raw, line).expect("a rule");
            assert_eq!(read == own("OUTPUT"), same, "{line}");
            assert_ne!(Rule::read(Table::Filter, line), Some(own("OUTPUT")), "{line}");
        }
        assert!(Rule::read(Table::Raw, "-P OUTPUT ACCEPT").is_none());
    }

    #[test]
    fn rules_are_known_by_comment() {
        for (line, ours) in [
            (r#"-A OUTPUT -m comment --comment "localdns: skip conntrack" -j NOTRACK"#, true),
            (r#"-A INPUT -m comment --comment "NodeLocal DNS Cache: allow DNS traffic" -j ACCEPT"#, true),
            (r#"-A OUTPUT -m comment --comment "not localdns: skip conntrack" -j NOTRACK"#, false),
            ("-A OUTPUT -d 169.254.10.10/32 -p tcp -m tcp --dport 53 -j NOTRACK", false),
        ] {
            let read = Rule::read(Table::Raw, line).expect("a rule");
            assert_eq!(read.has_comment_of_ours(), ours, "{line}");
        }
    }
}
