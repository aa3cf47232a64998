//! A tiny HTTP server on the loopback that plays a script: one step a request, in order.
//!
//! It keeps every request that it got, so that a test can say what was sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

/// What the server does with one request.
pub(crate) enum Step {
    /// Answers with a status, headers and a body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Reads the request and closes the connection.
    Break,
    /// Reads the request and never answers; the connection stays open.
    Silence,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    /// Method and path.
    pub(crate) line: String,
    /// Headers with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: String,
}

impl Got {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// A running script.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Scripted {
    /// Starts a server that plays these steps; beyond them it breaks every connection.
    pub(crate) fn start(steps: Vec<Step>) -> Scripted {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let got = Arc::new(Mutex::new(Vec::new()));
        let (hand_out, take) = mpsc::channel();
        for step in steps {
            hand_out.send(step).expect("the receiver lives");
        }
        drop(hand_out);
        let take = Arc::new(Mutex::new(take));
        let kept = got.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (take, kept) = (take.clone(), kept.clone());
                thread::spawn(move || play(&stream, &take, &kept));
            }
        });
        Scripted { address, got }
    }

    /// The server's base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().expect("no test panics while it holds this").clone()
    }
}

fn play(stream: &TcpStream, take: &Mutex<mpsc::Receiver<Step>>, kept: &Mutex<Vec<Got>>) {
    let mut reader = BufReader::new(stream);
    while let Some(got) = read_request(&mut reader) {
        kept.lock().expect("nobody panics while it holds this").push(got);
        let step = take.lock().expect("nobody panics while it holds this").try_recv();
        match step {
            Ok(Step::Answer(status, headers, body)) => {
                let mut text = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    text.push_str(&format!("{name}: {value}\r\n"));
                }
                text.push_str("\r\n");
                text.push_str(&body);
                if (&*stream).write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            Ok(Step::Silence) => {
                // Held open until the client goes away.
                let _ = reader.read(&mut [0; 1]);
                return;
            }
            Ok(Step::Break) | Err(_) => return,
        }
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Got> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    Some(Got { line, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// An answer with a JSON body.
pub(crate) fn json(status: u16, body: &str) -> Step {
    Step::Answer(status, vec![("content-type", "application/json".into())], body.to_owned())
}

/// A problem of Holdfast's.
pub(crate) fn problem(status: u16, slug: &str) -> Step {
    let body = format!(r#"{{"type":"/problems/{slug}","status":{status},"detail":"as scripted"}}"#);
    Step::Answer(status, vec![("content-type", "application/problem+json".into())], body)
}

/// A hold in this state.
pub(crate) fn hold(id: &str, state: &str) -> String {
    format!(
        r#"{{"id":"{id}","item":"x","state":"{state}","quantity":1,"sold":0,"buyer":"ann",
        "region":"default","placed_at":"2026-01-01T00:00:00.000Z",
        "expires_at":"2026-01-01T00:10:00.000Z","expires_in_ms":600000,"extends_left":1,
        "revision":7}}"#
    )
}
