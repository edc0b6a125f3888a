//! The `tokenizers` crate behind a handful of C functions, declared in text/crate.h.
//!
//! The crate does what must equal Hugging Face to the token: normalising, splitting, the model and
//! the added tokens. Two jobs it offers are done in C instead, from what this file exports:
//!
//! - *Templates.* Whatever the post-processor is (template, BERT, RoBERTa, a sequence of them), its
//!   effect is a list of pieces: a special token, the first text, the second text, each with a
//!   type id. The list is found once, at load, by running the post-processor on marker tokens, and
//!   is checked against it on texts of other lengths. Joining a query to a document is then a copy.
//! - *Truncation.* The crate cuts by building every overflowing window, and cuts per handle, not
//!   per call. The lengths are three lines of arithmetic; text/join.c has them.
//!
//! Rules of the boundary: a handle is immutable after load and shared by all threads; no panic
//! crosses it (`guard`); every failure is a code and a message; the caller frees what it is given
//! by the function named for it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::raw::c_char;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use tokenizers::models::ModelWrapper;
use tokenizers::{
    AddedVocabulary, Encoding, Model, OffsetReferential, OffsetType, PreTokenizer, Tokenizer,
};

/// Codes of text/crate.h, `enum rp_crate_code`.
#[repr(i32)]
#[derive(Clone, Copy)]
enum Code {
    Ok = 0,
    /// An argument is wrong: invalid UTF-8, an id outside the vocabulary.
    Invalid = 1,
    /// The file is not a tokenizer.json, or contradicts itself.
    Format = 2,
    /// A well-formed file that asks for something that is refused.
    Unsupported = 3,
    /// The crate panicked or failed on a text.
    Internal = 4,
}

type Failure = (Code, String);

fn fail<T>(code: Code, message: impl Into<String>) -> Result<T, Failure> {
    Err((code, message.into()))
}

/// One piece of a template. `id` is a token, or one of the two markers for a text.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Piece {
    id: i32,
    type_id: i32,
}

const FIRST: i32 = -1;
const SECOND: i32 = -2;

/// Marker ids used while a template is probed. Real ids are below 2^31 (`load` refuses others).
const MARK_FIRST: u32 = u32::MAX;
const MARK_SECOND: u32 = u32::MAX - 1;

type Template = Result<Vec<Piece>, String>;

pub struct Handle {
    tokenizer: Tokenizer,
    /// The added vocabulary, set to leave special spellings in the text alone.
    literal: AddedVocabulary,
    special_ids: HashSet<u32>,
    /// Spelling of the model's unknown token, which a model may emit for any text.
    unknown: Option<String>,
    /// By `[pair][with specials]`.
    templates: [[Template; 2]; 2],
    n_vocab: usize,
    id_limit: usize,
}

impl Handle {
    fn load(json: &[u8]) -> Result<Handle, Failure> {
        let mut tokenizer =
            Tokenizer::from_bytes(json).or_else(|e| fail(Code::Format, e.to_string()))?;
        // Both belong to whoever made the file, not to the caller: MiniLM's pads to 128.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).or_else(|e| fail(Code::Format, e.to_string()))?;
        refuse_random(tokenizer.get_model())?;

        let templates = [false, true]
            .map(|pair| [false, true].map(|special| find_template(&tokenizer, pair, special)));
        for template in &templates[0] {
            if let Err(reason) = template {
                return fail(Code::Unsupported, format!("post_processor: {reason}"));
            }
        }
        let id_limit = find_id_limit(&tokenizer, &templates)?;

        let mut literal = tokenizer.get_added_vocabulary().clone();
        literal.set_encode_special_tokens(true);
        let special_ids = literal
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        Ok(Handle {
            unknown: unknown_token(tokenizer.get_model()),
            n_vocab: tokenizer.get_vocab_size(true),
            id_limit,
            literal,
            special_ids,
            templates,
            tokenizer,
        })
    }

    /// The crate's own pipeline up to the model, without post-processing.
    fn encode(&self, text: &str, literal: bool) -> Result<Vec<i32>, Failure> {
        let internal = |e: tokenizers::Error| (Code::Internal, e.to_string());
        let added = if literal { &self.literal } else { self.tokenizer.get_added_vocabulary() };
        let mut pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        if let Some(splitter) = self.tokenizer.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut pieces).map_err(internal)?;
        }
        let model = self.tokenizer.get_model();
        model.tokenize_in_pretokenized(&mut pieces, None).map_err(internal)?;

        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let mut ids = Vec::new();
        for token in splits.iter().filter_map(|(_, _, t)| t.as_ref()).flatten() {
            if literal && self.is_forged(token.id, &token.value) {
                self.spell(&token.value, &mut ids).map_err(internal)?;
            } else {
                ids.push(token.id as i32);
            }
        }
        Ok(ids)
    }

    /// Whether the model itself read a special token out of the text. Unigram vocabularies hold
    /// `</s>` as a piece like any other, so hiding added tokens from the splitter is not enough.
    /// An unknown piece keeps the text's spelling as its value, so it is not taken for one.
    fn is_forged(&self, id: u32, value: &str) -> bool {
        self.special_ids.contains(&id)
            && self.unknown.as_deref() != Some(value)
            && self.tokenizer.id_to_token(id).as_deref() == Some(value)
    }

    /// Reads a forged token again one character at a time, so that nothing special can match.
    fn spell(&self, value: &str, ids: &mut Vec<i32>) -> tokenizers::Result<()> {
        let model = self.tokenizer.get_model();
        let mut buffer = [0; 4];
        for character in value.chars() {
            for token in model.tokenize(character.encode_utf8(&mut buffer))? {
                if self.is_forged(token.id, &token.value) {
                    return Err(format!(
                        "the character {character:?} is itself a special token (id {}) \
                         and cannot be read as text",
                        token.id
                    )
                    .into());
                }
                ids.push(token.id as i32);
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, Failure> {
        let mut tokens = Vec::with_capacity(ids.len());
        for (at, id) in ids.iter().enumerate() {
            // The crate drops unknown ids without a word; here they are an error.
            match u32::try_from(*id).ok().filter(|id| self.knows(*id)) {
                Some(id) => tokens.push(id),
                None => {
                    return fail(
                        Code::Invalid,
                        format!("id {id} at position {at} is not in the vocabulary"),
                    )
                }
            }
        }
        self.tokenizer
            .decode(&tokens, skip_special)
            .or_else(|e| fail(Code::Internal, e.to_string()))
    }

    fn knows(&self, id: u32) -> bool {
        self.tokenizer.id_to_token(id).is_some()
    }
}

/// One more than the largest id that can come out, from a text or from a template.
fn find_id_limit(tokenizer: &Tokenizer, templates: &[[Template; 2]; 2]) -> Result<usize, Failure> {
    let Some(largest) = tokenizer.get_vocab(true).values().copied().max() else {
        return fail(Code::Format, "the vocabulary is empty");
    };
    // i32::MAX itself is left out, so that the limit is an i32 as well.
    let Some(largest) = i32::try_from(largest).ok().filter(|id| *id < i32::MAX) else {
        return fail(Code::Format, format!("token id {largest} does not fit in 31 bits"));
    };
    let added = templates.iter().flatten().flatten().flatten().map(|piece| piece.id).max();
    Ok(largest.max(added.unwrap_or(0)) as usize + 1)
}

/// Dropout makes ids depend on a random generator; a ranking must not.
fn refuse_random(model: &ModelWrapper) -> Result<(), Failure> {
    match model {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some_and(|p| p > 0.0) => fail(
            Code::Unsupported,
            format!(
                "model.dropout is {}: tokens would be drawn at random",
                bpe.dropout.unwrap_or(0.0)
            ),
        ),
        _ => Ok(()),
    }
}

fn unknown_token(model: &ModelWrapper) -> Option<String> {
    match model {
        ModelWrapper::BPE(m) => m.unk_token.clone(),
        ModelWrapper::WordPiece(m) => Some(m.unk_token.clone()),
        ModelWrapper::WordLevel(m) => Some(m.unk_token.clone()),
        ModelWrapper::Unigram(_) => None,
    }
}

/// Finds the pieces from one run of the post-processor, then checks them on other lengths.
fn find_template(tokenizer: &Tokenizer, pair: bool, special: bool) -> Template {
    let pieces = read_pieces(&post_process(tokenizer, pair, special, 2, 3)?, 2, 3)?;
    let uses = |marker| pieces.iter().filter(|p| p.id == marker).count();
    if uses(FIRST) != 1 || uses(SECOND) != usize::from(pair) {
        return Err(format!(
            "the {} template uses the first text {} times and the second {} times",
            if pair { "pair" } else { "single" },
            uses(FIRST),
            uses(SECOND)
        ));
    }
    for (n_first, n_second) in [(0, 0), (1, 0), (0, 1), (1, 1), (7, 5)] {
        let expected = post_process(tokenizer, pair, special, n_first, n_second)?;
        if render(&pieces, n_first, n_second) != expected {
            return Err(format!(
                "on texts of {n_first} and {n_second} tokens the result is no list of pieces"
            ));
        }
    }
    Ok(pieces)
}

type IdAndType = (u32, u32);

fn post_process(
    tokenizer: &Tokenizer,
    pair: bool,
    special: bool,
    n_first: usize,
    n_second: usize,
) -> Result<Vec<IdAndType>, String> {
    let marks = |id, n, type_id| -> Encoding {
        (0..n).map(|_| (id, "x".to_string(), (0, 1), Some(0), type_id)).collect()
    };
    let first = marks(MARK_FIRST, n_first, 0);
    let second = pair.then(|| marks(MARK_SECOND, n_second, 1));
    let joined = guard(|| {
        tokenizer
            .post_process(first, second, special)
            .or_else(|e| fail(Code::Internal, e.to_string()))
    })
    .map_err(|(_, message)| message)?;
    Ok(joined.get_ids().iter().copied().zip(joined.get_type_ids().iter().copied()).collect())
}

fn read_pieces(joined: &[IdAndType], n_first: usize, n_second: usize) -> Template {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < joined.len() {
        let (id, type_id) = joined[at];
        let (piece_id, n) = match id {
            MARK_FIRST => (FIRST, n_first),
            MARK_SECOND => (SECOND, n_second),
            _ => match i32::try_from(id) {
                Ok(id) if id < i32::MAX => (id, 1),
                _ => return Err(format!("token id {id} does not fit in 31 bits")),
            },
        };
        let type_id =
            i32::try_from(type_id).map_err(|_| format!("type id {type_id} is too large"))?;
        pieces.push(Piece { id: piece_id, type_id });
        at += n;
    }
    Ok(pieces)
}

fn render(pieces: &[Piece], n_first: usize, n_second: usize) -> Vec<IdAndType> {
    let expand = |piece: &Piece| {
        let (id, n) = match piece.id {
            FIRST => (MARK_FIRST, n_first),
            SECOND => (MARK_SECOND, n_second),
            id => (id as u32, 1),
        };
        std::iter::repeat_n((id, piece.type_id as u32), n)
    };
    pieces.iter().flat_map(expand).collect()
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}
static HOOK: Once = Once::new();

/// Runs `f` and turns a panic into a failure that says where it was. Inside, the panic hook keeps
/// the message instead of printing it; outside, the hook that was there before goes on working.
fn guard<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if GUARDED.get() {
                PANIC.with_borrow_mut(|message| *message = info.to_string().replace('\n', " "));
            } else {
                previous(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    GUARDED.set(outer);
    result.unwrap_or_else(|_| fail(Code::Internal, PANIC.take()))
}

/// Where a failure's message goes: `size` bytes of the caller, always closed by a 0.
#[repr(C)]
pub struct Message {
    bytes: *mut c_char,
    size: usize,
}

/// # Safety
/// `message.bytes` must be valid for `message.size` bytes.
unsafe fn report<T>(result: Result<T, Failure>, message: Message, store: impl FnOnce(T)) -> i32 {
    match result {
        Ok(value) => {
            store(value);
            Code::Ok as i32
        }
        Err((code, text)) => {
            if message.size > 0 {
                let mut n = text.len().min(message.size - 1);
                while !text.is_char_boundary(n) {
                    n -= 1;
                }
                std::ptr::copy_nonoverlapping(text.as_ptr(), message.bytes.cast(), n);
                *message.bytes.add(n) = 0;
            }
            code as i32
        }
    }
}

/// # Safety
/// `bytes` must be valid for `n` bytes, or `n` must be 0.
unsafe fn bytes_of<'a>(bytes: *const c_char, n: usize) -> &'a [u8] {
    if n == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(bytes.cast(), n)
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).or_else(|e| {
        fail(Code::Invalid, format!("invalid UTF-8 at byte {} of {}", e.valid_up_to(), bytes.len()))
    })
}

/// A buffer that this side allocated and this side frees.
#[repr(C)]
pub struct Buffer<T> {
    items: *mut T,
    n: usize,
}

impl<T> Buffer<T> {
    fn new(items: Vec<T>) -> Self {
        let boxed = items.into_boxed_slice();
        let n = boxed.len();
        Buffer { items: Box::into_raw(boxed).cast(), n }
    }

    /// # Safety
    /// Must be called once, on what `new` made.
    unsafe fn free(self) {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.items, self.n)));
    }
}

/// # Safety
/// `json` must be valid for `n` bytes, `out` for a write.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_load(
    json: *const c_char,
    n: usize,
    out: *mut *mut Handle,
    message: Message,
) -> i32 {
    let result = guard(|| Handle::load(bytes_of(json, n)));
    report(result, message, |handle| *out = Box::into_raw(Box::new(handle)))
}

/// # Safety
/// `handle` must come from `rp_crate_load`, be freed once, and be in no other thread's call.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_free(handle: *mut Handle) {
    let _ = guard(|| {
        drop(Box::from_raw(handle));
        Ok(())
    });
}

/// # Safety
/// `text` must be valid for `n` bytes, `out` for a write.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_encode(
    handle: &Handle,
    text: *const c_char,
    n: usize,
    literal: bool,
    out: *mut Buffer<i32>,
    message: Message,
) -> i32 {
    let result = guard(|| handle.encode(utf8(bytes_of(text, n))?, literal));
    report(result, message, |ids| *out = Buffer::new(ids))
}

/// # Safety
/// `ids` must come from `rp_crate_encode` and be freed once.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_ids_free(ids: Buffer<i32>) {
    ids.free();
}

/// The pieces stay with the handle.
///
/// # Safety
/// `pieces` and `n` must be valid for a write.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_template(
    handle: &Handle,
    pair: bool,
    special: bool,
    pieces: *mut *const Piece,
    n: *mut usize,
    message: Message,
) -> i32 {
    let result = match &handle.templates[usize::from(pair)][usize::from(special)] {
        Ok(template) => Ok(template),
        Err(reason) => fail(Code::Unsupported, format!("post_processor: {reason}")),
    };
    report(result, message, |template| {
        *pieces = template.as_ptr();
        *n = template.len();
    })
}

/// The id of a token, or -1.
///
/// # Safety
/// `token` must be valid for `n` bytes.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_token_to_id(
    handle: &Handle,
    token: *const c_char,
    n: usize,
) -> i32 {
    guard(|| Ok(handle.tokenizer.token_to_id(utf8(bytes_of(token, n))?)))
        .ok()
        .flatten()
        .map_or(-1, |id| id as i32)
}

/// # Safety
/// `ids` must be valid for `n` items, `out` for a write.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_decode(
    handle: &Handle,
    ids: *const i32,
    n: usize,
    skip_special: bool,
    out: *mut Buffer<u8>,
    message: Message,
) -> i32 {
    let ids = if n == 0 { &[] } else { std::slice::from_raw_parts(ids, n) };
    let result = guard(|| handle.decode(ids, skip_special));
    report(result, message, |text| *out = Buffer::new(text.into_bytes()))
}

/// # Safety
/// `bytes` must come from `rp_crate_decode` and be freed once.
#[no_mangle]
pub unsafe extern "C" fn rp_crate_bytes_free(bytes: Buffer<u8>) {
    bytes.free();
}

#[no_mangle]
pub extern "C" fn rp_crate_vocab_size(handle: &Handle) -> usize {
    handle.n_vocab
}

#[no_mangle]
pub extern "C" fn rp_crate_id_limit(handle: &Handle) -> usize {
    handle.id_limit
}
