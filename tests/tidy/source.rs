//! A Rust file as the tidiness rules see it: its text, its code without comments and literals, and
//! its code without tests. Not a parser: just enough of the lexer that a word in a comment or in a
//! string is never taken for code.

/// One file of the project.
pub(super) struct Source {
    /// Its path from the root, with `/`.
    pub(super) path: String,
    /// As it is.
    pub(super) text: String,
    /// With comments and literals blanked; lines and columns stay where they are.
    pub(super) code: String,
    /// With the items under `#[cfg(test)]` blanked as well; all blank in a file of tests.
    pub(super) shipped: String,
}

impl Source {
    /// Reads a file's text.
    pub(super) fn new(path: &str, text: &str) -> Source {
        let code = blank_comments_and_literals(text);
        let shipped =
            if is_all_tests(path) { blank(&code, 0, code.len()) } else { blank_tests(&code) };
        Source { path: path.to_owned(), text: text.to_owned(), code, shipped }
    }

    /// Returns the code of tests only: the whole file under `tests/`, else the cut-out parts.
    pub(super) fn tests(&self) -> String {
        let cut = self.code.bytes().zip(self.shipped.bytes());
        let bytes =
            cut.map(|(all, shipped)| if all == shipped && all != b'\n' { b' ' } else { all });
        String::from_utf8(bytes.collect()).expect("blanked code is ASCII")
    }

    /// Takes the file for one of tests, whatever its name says.
    pub(super) fn mark_as_tests(&mut self) {
        self.shipped = blank(&self.code, 0, self.code.len());
    }
}

/// Tells a file that is never shipped by its path.
fn is_all_tests(path: &str) -> bool {
    path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns the line (from 1) of a place in the code.
pub(super) fn line_of(code: &str, at: usize) -> usize {
    code[..at].bytes().filter(|b| *b == b'\n').count() + 1
}

fn blank(code: &str, from: usize, to: usize) -> String {
    let blanked = code.bytes().enumerate().map(|(at, byte)| match byte {
        b'\n' => byte,
        _ if (from..to).contains(&at) => b' ',
        _ => byte,
    });
    String::from_utf8(blanked.collect()).expect("blanked code is ASCII")
}

/// Returns the code with every comment, string and character literal blanked, and every byte that
/// is not ASCII replaced, so that places in it are places in the text.
fn blank_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code: Vec<u8> = bytes.iter().map(|b| if b.is_ascii() { *b } else { b'?' }).collect();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if let Some(end) = end {
            let end = end.min(bytes.len());
            code[at..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
            at = end;
        } else if is_word(bytes[at]) {
            // A word is passed over whole, so that the `r` of `for"…"` begins no raw string.
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
        } else {
            at += 1;
        }
    }
    String::from_utf8(code).expect("blanked code is ASCII")
}

/// Tells a byte that may stand in a word.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns where the comment or literal that begins here ends.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    let prefix = rest.iter().take_while(|b| matches!(b, b'b' | b'c' | b'r')).count();
    let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
    let quoted = rest.get(prefix + hashes) == Some(&b'"');
    if quoted && prefix <= 2 && (hashes == 0 || rest[..prefix].contains(&b'r')) {
        let start = at + prefix + hashes + 1;
        if rest[..prefix].contains(&b'r') {
            let close = [&b"\""[..], &vec![b'#'; hashes]].concat();
            let found = bytes[start..].windows(close.len()).position(|w| w == close);
            return Some(found.map_or(bytes.len(), |found| start + found + close.len()));
        }
        return Some(quote_end(bytes, start, b'"'));
    }
    match rest {
        [b'b', b'\'', ..] => Some(quote_end(bytes, at + 2, b'\'')),
        // 'x' or '\…' is a character; 'name without a second quote is a lifetime.
        [b'\'', b'\\', ..] => Some(quote_end(bytes, at + 1, b'\'')),
        [b'\'', _, b'\'', ..] => Some(at + 3),
        [b'\'', first, ..] if !first.is_ascii() => Some(quote_end(bytes, at + 1, b'\'')),
        _ => None,
    }
}

fn quote_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// Returns the place behind the bracket that closes the one at `open`.
pub(super) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns where the item that begins here ends: behind its block or its semicolon.
fn item_end(code: &str, mut at: usize) -> usize {
    let bytes = code.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at + 1,
            b'{' => return closing(code, at),
            b'(' | b'[' => at = closing(code, at),
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the attributes `#[cfg(…)]` that stand for tests only: (where, where they end).
fn test_attributes(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[cfg(") {
        let end = closing(code, at + 1);
        let words: Vec<&str> = code[at + 6..end].split(|c: char| !is_letter(c)).collect();
        if words.contains(&"test") && !words.contains(&"not") && !words.contains(&"any") {
            found.push((at, end));
        }
    }
    found
}

fn blank_tests(code: &str) -> String {
    let mut shipped = code.to_owned();
    for (from, end) in test_attributes(code) {
        shipped = blank(&shipped, from, item_end(code, end));
    }
    shipped
}

/// Returns the names of the modules in files of their own that this file declares for tests only.
pub(super) fn test_modules(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (_, end) in test_attributes(code) {
        let item = &code[end..item_end(code, end)];
        let mut words = item.trim_end_matches(';').split_whitespace().skip_while(|w| *w != "mod");
        if let (true, Some(_), Some(name)) = (item.ends_with(';'), words.next(), words.next()) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns every place where `name` stands as a whole word.
pub(super) fn words<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(name).map(|(at, _)| at).filter(move |at| {
        let bytes = code.as_bytes();
        (*at == 0 || !is_word(bytes[at - 1]))
            && bytes.get(at + name.len()).is_none_or(|b| !is_word(*b))
    })
}

/// Returns the first names behind `root::`, those in braces too: `root::{a::B, c}` gives a and c.
pub(super) fn names_under(code: &str, root: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for at in words(code, root) {
        let Some(rest) = code[at + root.len()..].strip_prefix("::") else { continue };
        let start = code.len() - rest.len();
        if !rest.starts_with('{') {
            names.push((at, rest.chars().take_while(|c| is_letter(*c)).collect()));
            continue;
        }
        let mut depth = 0_usize;
        let mut fresh = false;
        for (offset, byte) in code[start..closing(code, start)].bytes().enumerate() {
            match byte {
                b'{' => {
                    depth += 1;
                    fresh = depth == 1;
                }
                b'}' => depth -= 1,
                b',' => fresh = depth == 1,
                _ if fresh && is_word(byte) => {
                    let name = code[start + offset..].chars().take_while(|c| is_letter(*c));
                    names.push((start + offset, name.collect()));
                    fresh = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// Returns every function with a body: its name, and its first and last line.
pub(super) fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name: String =
            code[at + 2..].trim_start().chars().take_while(|c| is_letter(*c)).collect();
        let end = item_end(code, at);
        if !name.is_empty() && code[..end].ends_with('}') {
            found.push((name, line_of(code, at), line_of(code, end - 1)));
        }
    }
    found
}
