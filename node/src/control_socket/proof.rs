//! Proofs of CAP_NET_ADMIN, which distinguish a server from another process of uid 0: a command
//! chooses a nonce, and only a process that may change this namespace's rules can create an
//! nftables table of that name.

use std::collections::BTreeMap;
use std::time::Duration;

use netlink_packet_netfilter::nftables::TableFlags;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::nft::{Batch, NftError, Socket};

/// Returns the name of the nftables table that answers a challenge. It contains the server's name:
/// otherwise an impostor could pass its challenge on to a real server, and claim the table that the
/// real server creates.
pub(super) fn table_of(server: &str, nonce: &str) -> String {
    format!("{TABLE}{server}-{nonce}")
}

/// Returns a new nonce.
pub(super) fn nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Whether the text is a [`nonce`]: other text must not become part of a table's name.
pub(super) fn is_nonce(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Deletes proofs that a killed server left, on kernels without table owners.
///
/// # Errors
/// Errors of the kernel.
pub fn remove_left_proofs() -> Result<(), NftError> {
    remove_unowned(&mut Socket::open()?, TABLE)
}

fn remove_unowned(socket: &mut Socket, prefix: &str) -> Result<(), NftError> {
    let mut batch = Batch::default();
    for table in socket.tables()?.iter().filter(|table| !table.is_owned && table.name.starts_with(prefix)) {
        batch.remove_table(&table.name);
    }
    socket.commit(batch)
}

/// A change to a nonce's table.
enum Change {
    Show(String, oneshot::Sender<Result<(), String>>),
    Hide(String, Option<oneshot::Sender<()>>),
}

/// A handle that sends changes to the task of [`make_tables`].
#[derive(Clone)]
pub(super) struct Prover(mpsc::UnboundedSender<Change>);

/// A nonce's table, which is deleted when this value is dropped.
pub(super) struct Shown {
    nonce: String,
    prover: Prover,
}

impl Shown {
    /// Deletes the table, and waits for the deletion.
    pub(super) async fn hide(mut self) {
        let (deleted, is_deleted) = oneshot::channel();
        let _ = self.prover.0.send(Change::Hide(std::mem::take(&mut self.nonce), Some(deleted)));
        let _ = is_deleted.await;
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if !self.nonce.is_empty() {
            let _ = self.prover.0.send(Change::Hide(std::mem::take(&mut self.nonce), None));
        }
    }
}

impl Prover {
    /// Starts the task that creates tables for the server of this name; must run within a runtime.
    pub(super) fn start(server: String) -> Self {
        let (sender, changes) = mpsc::unbounded_channel();
        tokio::spawn(make_tables(server, changes));
        Self(sender)
    }

    /// Creates the nonce's table.
    ///
    /// # Errors
    /// The reason why the table could not be created.
    pub(super) async fn show(&self, nonce: &str) -> Result<Shown, String> {
        let (made, is_made) = oneshot::channel();
        let shown = Shown { nonce: nonce.to_owned(), prover: self.clone() };
        let _ = self.0.send(Change::Show(nonce.to_owned(), made));
        is_made.await.unwrap_or_else(|_| Err("it ends".to_owned()))?;
        Ok(shown)
    }
}

/// Creates and deletes tables, with all pending changes in one transaction: however many challenges
/// arrive, other programs that use nftables see at most twenty transactions a second.
async fn make_tables(server: String, mut changes: mpsc::UnboundedReceiver<Change>) {
    let mut tables = None;
    while let Some(first) = changes.recv().await {
        let (mut show, mut hide) = (BTreeMap::new(), BTreeMap::new());
        for change in std::iter::once(first).chain(std::iter::from_fn(|| changes.try_recv().ok())) {
            match change {
                Change::Show(nonce, made) => drop(show.insert(nonce, made)),
                // A connection that has ended meanwhile needs no table.
                Change::Hide(nonce, deleted) if show.remove(&nonce).is_none() => {
                    let waits: &mut Option<_> = hide.entry(nonce).or_default();
                    *waits = waits.take().or(deleted);
                }
                Change::Hide(..) => {}
            }
        }
        let named = |nonce: &String| table_of(&server, nonce);
        let (add, delete): (Vec<_>, Vec<_>) =
            (show.keys().map(named).collect(), hide.keys().map(named).collect());
        let changed = change(&mut tables, &server, &add, &delete).map_err(|error| error.to_string());
        for made in show.into_values() {
            let _ = made.send(changed.clone());
        }
        // Closing the channel reports that a table is deleted.
        drop(hide);
        sleep(PAUSE).await;
    }
}

fn change(
    tables: &mut Option<(Socket, TableFlags)>,
    server: &str,
    add: &[String],
    delete: &[String],
) -> Result<(), NftError> {
    let (socket, flags) = match tables {
        Some(open) => open,
        None => {
            let mut socket = Socket::open()?;
            remove_unowned(&mut socket, &table_of(server, ""))?;
            tables.insert((socket, TableFlags::Owner))
        }
    };
    let batch = |flags: TableFlags| {
        let mut batch = Batch::default();
        delete.iter().for_each(|table| batch.remove_table(table));
        add.iter().for_each(|table| batch.add_table(table, flags));
        batch
    };
    match socket.commit_unseen(batch(*flags)) {
        // Before Linux 5.12 tables have no owner.
        Err(NftError::NotSupported { .. } | NftError::Refused { .. }) if *flags == TableFlags::Owner => {
            socket.commit_unseen(batch(TableFlags::empty()))?;
            *flags = TableFlags::empty();
            Ok(())
        }
        done => done,
    }
}

/// Prefix of the tables' names.
const TABLE: &str = "localdns-proof-";
/// Interval of transactions.
const PAUSE: Duration = Duration::from_millis(50);
