//! Runs the scripts themselves: the same Lua as on a real server, over [`Data`].

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mlua::{Function, IntoLua, Lua, Table, Value, Variadic};

use super::data::{Data, Output};

/// What Redis gives to scripts: errors of `call` are raised, those of `pcall` are returned. The user may call everything. `struct.pack` packs
/// numbers of some bytes, with the highest first.
const PRELUDE: &str = "
local run = ...
redis = { pcall = run, acl_check_cmd = function() return true end }
function redis.call(...)
  local result = run(...)
  if type(result) == 'table' and result.err then
    error(result, 0)
  end
  return result
end
struct = {}
function struct.pack(format, ...)
  local bytes, n = '', 0
  for size in string.gmatch(format, 'I(%d)') do
    n = n + 1
    local value, text = select(n, ...), ''
    for _ = 1, size do
      value, text = math.floor(value / 256), string.char(value % 256) .. text
    end
    bytes = bytes .. text
  end
  return bytes
end";

pub(super) struct Interpreter {
    lua: Lua,
    data: Arc<Mutex<Data>>,
    /// By the address of its source, which is static.
    scripts: HashMap<usize, Function>,
}

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpreter").field("data", &self.data()).finish_non_exhaustive()
    }
}

/// Strings that are not UTF-8, as the ids of permits, are kept with a character of Unicode's private use area for each byte.
const BYTES: u32 = 0xF700;

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => match text.to_str() {
            Ok(text) => text.to_owned(),
            Err(_) => text.as_bytes().iter().filter_map(|byte| char::from_u32(BYTES + u32::from(*byte))).collect(),
        },
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

/// The string that [`word`] kept.
fn text(lua: &Lua, kept: &str) -> mlua::Result<Value> {
    let byte = |kept: char| u8::try_from(u32::from(kept).wrapping_sub(BYTES)).ok();
    let bytes: Option<Vec<u8>> = kept.chars().map(byte).collect();
    let text = lua.create_string(bytes.as_deref().unwrap_or(kept.as_bytes()))?;
    Ok(Value::String(text))
}

/// As Redis converts its replies.
fn to_lua(lua: &Lua, outcome: Result<Output, String>) -> mlua::Result<Value> {
    let table = |name: &str, value: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.set(name, value)?;
        Ok(Value::Table(table))
    };
    match outcome {
        Ok(Output::Nil) => Ok(Value::Boolean(false)),
        Ok(Output::Number(number)) => number.into_lua(lua),
        Ok(Output::Text(kept)) => text(lua, &kept),
        Ok(Output::List(items)) => {
            items.iter().map(|kept| text(lua, kept)).collect::<mlua::Result<Vec<_>>>()?.into_lua(lua)
        }
        Ok(Output::Done) => table("ok", "OK"),
        Err(error) => table("err", &error),
    }
}

impl Interpreter {
    pub(super) fn new() -> Interpreter {
        let (lua, data) = (Lua::new(), Arc::new(Mutex::new(Data::default())));
        let shared = Arc::clone(&data);
        let run = lua.create_function(move |lua, words: Variadic<Value>| {
            let words: Vec<String> = words.iter().map(word).collect();
            let outcome = shared.lock().unwrap_or_else(PoisonError::into_inner).run(&words);
            to_lua(lua, outcome)
        });
        let run = run.expect("a function can be made in a new interpreter");
        lua.load(PRELUDE).call::<()>(run).expect("the prelude is valid");
        Interpreter { lua, data, scripts: HashMap::new() }
    }

    pub(super) fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply of a script, or its error.
    pub(super) fn run(&mut self, source: &'static str, keys: Vec<&str>, args: Vec<&str>) -> Result<String, String> {
        self.call(source, keys, args).map_err(|error| error.to_string())
    }

    fn call(&mut self, source: &'static str, keys: Vec<&str>, args: Vec<&str>) -> mlua::Result<String> {
        self.data().set_clock();
        let globals: Table = self.lua.globals();
        globals.set("KEYS", keys)?;
        globals.set("ARGV", args)?;
        let place = source.as_ptr().addr();
        if !self.scripts.contains_key(&place) {
            let script = self.lua.load(source).into_function()?;
            self.scripts.insert(place, script);
        }
        self.scripts[&place].call(())
    }
}
