//! Writes the history down while it happens: one lock gives every event its place and its time, so
//! that the order of the lines is the order of the moments.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::history::{Act, Commit, Event, History, Kind, Process, Value};

/// Counts for the progress display.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) invoked: u64,
    pub(crate) ok: u64,
    pub(crate) fail: u64,
    pub(crate) info: u64,
    pub(crate) faults: u64,
}

#[derive(Debug)]
struct Book {
    events: Vec<Event>,
    file: BufWriter<File>,
    tally: Tally,
    broken: Option<String>,
}

/// The one who writes.
#[derive(Debug)]
pub(crate) struct Recorder {
    began: Instant,
    book: Mutex<Book>,
}

/// What an event says beyond its operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    pub(crate) node: Option<u64>,
    pub(crate) commit: Option<Commit>,
    pub(crate) error: Option<String>,
}

impl Recorder {
    /// Begins a history in a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be made.
    pub(crate) fn create(path: &Path) -> std::io::Result<Recorder> {
        let file = BufWriter::new(File::create(path)?);
        let book = Book { events: Vec::new(), file, tally: Tally::default(), broken: None };
        Ok(Recorder { began: Instant::now(), book: Mutex::new(book) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("nobody panics while writing")
    }

    /// Notes an event now.
    pub(crate) fn note(&self, kind: Kind, process: Process, f: Act, value: Value, beside: Beside) {
        let mut book = self.book();
        let time = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let index = book.events.len() as u64;
        let Beside { node, commit, error } = beside;
        let event = Event { index, time, kind, process, f, value, node, commit, error };
        if f.is_call() {
            match kind {
                Kind::Invoke => book.tally.invoked += 1,
                Kind::Ok => book.tally.ok += 1,
                Kind::Fail => book.tally.fail += 1,
                Kind::Info => book.tally.info += 1,
            }
        }
        if f == Act::FaultStart && event.value.effective == Some(true) {
            book.tally.faults += 1;
        }
        let mut line = serde_json::to_vec(&event).expect("plain data");
        line.push(b'\n');
        if let Err(why) = book.file.write_all(&line) {
            book.broken.get_or_insert(why.to_string());
        }
        book.events.push(event);
    }

    /// Notes something that the observer or the nemesis says.
    pub(crate) fn say(&self, process: Process, f: Act, value: Value) {
        self.note(Kind::Info, process, f, value, Beside::default());
    }

    /// How much was done.
    pub(crate) fn tally(&self) -> Tally {
        self.book().tally
    }

    /// Ends the history.
    ///
    /// # Errors
    ///
    /// When a line could not be written.
    pub(crate) fn finish(&self) -> Result<History, String> {
        let mut book = self.book();
        let flushed = book.file.flush().map_err(|e| e.to_string());
        match (&book.broken, flushed) {
            (Some(why), _) => Err(format!("the history could not be written: {why}")),
            (None, Err(why)) => Err(format!("the history could not be written: {why}")),
            (None, Ok(())) => Ok(History { events: std::mem::take(&mut book.events) }),
        }
    }
}
