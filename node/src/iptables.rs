//! Rules that AKS's script put into the tables of iptables and, killed, left there: they keep queries from conntrack, and so
//! from the way out.

use std::io;

use crate::nft::Socket;
use crate::program::run;

/// Takes them away, all at once, and says how many there were. Nothing is run where there is no table for them.
///
/// # Errors
/// Where iptables is not there or fails.
pub fn remove_scripts_rules() -> io::Result<usize> {
    if !has_raw_table() {
        return Ok(0);
    }
    let listed = run("iptables", &["-w", "5", "-t", "raw", "-S"], "")?;
    let (input, rules) = removal(&listed);
    if rules > 0 {
        run("iptables-restore", &["-w", "5", "--noflush"], &input)?;
    }
    Ok(rules)
}

fn has_raw_table() -> bool {
    let legacy = std::fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    let chains = || Socket::open().and_then(|mut socket| socket.base_chains()).unwrap_or_default();
    legacy.lines().any(|table| table == "raw")
        || chains().iter().any(|chain| chain.family == "ip" && chain.table == "raw")
}

/// What `iptables-restore` is told, and how many rules that takes away.
fn removal(listed: &str) -> (String, usize) {
    let ours = |line: &&str| line.starts_with("-A ") && line.contains(COMMENT);
    let rules: Vec<String> = listed.lines().filter(ours).map(|line| line.replacen("-A", "-D", 1)).collect();
    (format!("*raw\n{}\nCOMMIT\n", rules.join("\n")), rules.len())
}

const COMMENT: &str = "--comment \"localdns: skip conntrack\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scripts_rules_go() {
        let listed = "-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n\
             -A PREROUTING -d 169.254.10.10/32 -p tcp -m comment --comment \"localdns: skip conntrack\" -m tcp --dport 53 -j NOTRACK\n\
             -A PREROUTING -d 169.254.10.10/32 -p tcp -m tcp --dport 53 -j NOTRACK\n";
        let expected = "*raw\n\
             -D PREROUTING -d 169.254.10.10/32 -p tcp -m comment --comment \"localdns: skip conntrack\" -m tcp --dport 53 -j NOTRACK\n\
             COMMIT\n";
        assert_eq!(removal(listed), (expected.to_owned(), 1));
    }
}
