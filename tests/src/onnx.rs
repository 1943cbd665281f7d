//! Writes ONNX files for tests: the messages of `onnx.proto`, and the graph of a BERT encoder. The crates of
//! the program include this file in their unit tests.

/// The element type of float32 numbers in `TensorProto.DataType`.
pub const FLOAT: u64 = 1;
/// The element type of 32-bit integers.
pub const INT32: u64 = 6;
/// The element type of 64-bit integers.
pub const INT64: u64 = 7;

/// A protobuf varint.
#[must_use]
pub fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

/// A field with a number.
#[must_use]
pub fn number(field: u64, n: u64) -> Vec<u8> {
    [varint(field << 3), varint(n)].concat()
}

/// A field with bytes: a text or a message.
#[must_use]
pub fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// A `TensorProto` without its data.
#[must_use]
pub fn tensor(name: &str, data_type: u64, dims: &[u64], rest: &[Vec<u8>]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|dim| number(1, *dim)).collect();
    [dims, number(2, data_type), bytes(8, name), rest.concat()].concat()
}

/// The fields of a tensor whose data is in another file.
#[must_use]
pub fn external(location: &str, offset: u64, length: u64) -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &str| bytes(13, [bytes(1, key), bytes(2, value)].concat());
    vec![
        entry("location", location),
        entry("offset", &offset.to_string()),
        entry("length", &length.to_string()),
        number(14, 1),
    ]
}

/// A `NodeProto`.
#[must_use]
pub fn node(operator: &str, inputs: &[&str], outputs: &[&str], rest: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name)).collect();
    let outputs: Vec<u8> = outputs.iter().flat_map(|name| bytes(2, name)).collect();
    [inputs, outputs, bytes(4, operator), rest.concat()].concat()
}

/// The attribute of a node with an integer.
#[must_use]
pub fn int(name: &str, value: i64) -> Vec<u8> {
    bytes(5, [bytes(1, name), number(3, value as u64), number(20, 2)].concat())
}

/// The attribute of a node with integers.
#[must_use]
pub fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| number(8, *value as u64)).collect();
    bytes(5, [bytes(1, name), values, number(20, 7)].concat())
}

/// The attribute of a node with a number.
#[must_use]
pub fn float(name: &str, value: f32) -> Vec<u8> {
    let value = [varint(2 << 3 | 5), value.to_le_bytes().to_vec()].concat();
    bytes(5, [bytes(1, name), value, number(20, 1)].concat())
}

/// The attribute of a node with a graph.
#[must_use]
pub fn subgraph(name: &str, graph: &Graph) -> Vec<u8> {
    bytes(5, [bytes(1, name), bytes(6, graph.message()), number(20, 5)].concat())
}

/// A graph that is being written.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The fields of the `GraphProto`.
    pub fields: Vec<Vec<u8>>,
    next: usize,
}

impl Graph {
    /// Adds a node as it is.
    pub fn push(&mut self, node: Vec<u8>) {
        self.fields.push(bytes(1, node));
    }

    /// Adds a node with one output and returns the name of that output.
    pub fn add(&mut self, operator: &str, inputs: &[&str], attributes: &[Vec<u8>]) -> String {
        self.next += 1;
        let output = format!("{operator}_{}", self.next);
        self.push(node(operator, inputs, &[&output], attributes));
        output
    }

    /// Adds an initializer as it is.
    pub fn initializer(&mut self, tensor: Vec<u8>) {
        self.fields.push(bytes(5, tensor));
    }

    /// Adds an initializer of float32 numbers.
    pub fn floats(&mut self, name: &str, dims: &[u64], values: &[f32]) {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(tensor(name, FLOAT, dims, &[bytes(9, raw)]));
    }

    /// Adds an initializer of integers and returns its name.
    pub fn integers(&mut self, values: &[i64]) -> String {
        self.next += 1;
        let name = format!("integers_{}", self.next);
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(tensor(&name, INT64, &[values.len() as u64], &[bytes(9, raw)]));
        name
    }

    /// Adds an input; axes without a size are given by their name.
    pub fn input(&mut self, name: &str, data_type: u64, dims: &[&str]) {
        self.fields.push(bytes(11, value(name, data_type, dims)));
    }

    /// Adds an output.
    pub fn output(&mut self, name: &str, data_type: u64, dims: &[&str]) {
        self.fields.push(bytes(12, value(name, data_type, dims)));
    }

    /// The `GraphProto`.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        [bytes(2, "g"), self.fields.concat()].concat()
    }

    /// The file: a `ModelProto`.
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        let opsets = [bytes(8, number(2, 17)), bytes(8, [bytes(1, "com.microsoft"), number(2, 1)].concat())];
        [number(1, 8), bytes(2, "lode-tests"), bytes(7, self.message()), opsets.concat()].concat()
    }
}

/// A `ValueInfoProto` of a tensor.
fn value(name: &str, data_type: u64, dims: &[&str]) -> Vec<u8> {
    let dim = |dim: &&str| match dim.parse::<u64>() {
        Ok(size) => bytes(1, number(1, size)),
        Err(_) => bytes(1, bytes(2, dim)),
    };
    let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
    let of_tensor = [number(1, data_type), bytes(2, shape)].concat();
    [bytes(1, name), bytes(2, bytes(1, of_tensor))].concat()
}

/// Returns the shape and the values of a tensor by its name in a checkpoint.
pub type Weights<'a> = dyn Fn(&str) -> (Vec<u64>, Vec<f32>) + 'a;

/// The sizes of a BERT encoder.
#[derive(Debug, Clone, Copy)]
pub struct Bert {
    /// Values of a hidden state.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
    /// The epsilon of the norms.
    pub norm_eps: f32,
    /// The row of the position table for the first token: 0 for BERT, 2 for RoBERTa.
    pub first_position: i64,
    /// The type of the ids: [`INT64`] or [`INT32`].
    pub id_type: u64,
}

impl Bert {
    /// Writes the graph with weights as a checkpoint names them. `weight` returns a tensor's shape and values.
    pub fn graph(&self, weight: &Weights<'_>) -> Graph {
        let mut g = Graph::default();
        let (width, ids) = (self.width.to_string(), ["batch", "tokens"]);
        for input in ["input_ids", "attention_mask", "token_type_ids"] {
            g.input(input, self.id_type, &ids);
        }
        g.output("last_hidden_state", FLOAT, &["batch", "tokens", &width]);
        let take = |g: &mut Graph, name: &str| {
            let (shape, values) = weight(name);
            g.floats(name, &shape, &values);
            name.to_owned()
        };
        // The weights of a checkpoint are [out, in].
        let linear = |g: &mut Graph, x: &str, name: &str| {
            let (shape, values) = weight(&format!("{name}.weight"));
            let (rows, cols) = (shape[0] as usize, shape[1] as usize);
            let turned: Vec<f32> = (0..cols)
                .flat_map(|col| (0..rows).map(move |row| (row, col)))
                .map(|(row, col)| values[row * cols + col])
                .collect();
            g.floats(&format!("{name}.turned"), &[shape[1], shape[0]], &turned);
            let (shape, values) = weight(&format!("{name}.bias"));
            g.floats(&format!("{name}.bias"), &shape, &values);
            let product = g.add("MatMul", &[x, &format!("{name}.turned")], &[]);
            g.add("Add", &[&product, &format!("{name}.bias")], &[])
        };
        let norm = |g: &mut Graph, x: &str, name: &str| {
            for part in ["weight", "bias"] {
                let (shape, values) = weight(&format!("{name}.{part}"));
                g.floats(&format!("{name}.{part}"), &shape, &values);
            }
            let inputs = [x, &format!("{name}.weight"), &format!("{name}.bias")];
            g.add("LayerNormalization", &inputs, &[int("axis", -1), float("epsilon", self.norm_eps)])
        };
        let word = take(&mut g, "embeddings.word_embeddings.weight");
        let position = take(&mut g, "embeddings.position_embeddings.weight");
        let token_type = take(&mut g, "embeddings.token_type_embeddings.weight");
        let shape = g.add("Shape", &["input_ids"], &[]);
        let (zero, one) = (g.integers(&[0]), g.integers(&[1]));
        let first = g.integers(&[self.first_position]);
        let tokens = g.add("Gather", &[&shape, &one], &[]);
        let end = g.add("Add", &[&tokens, &first], &[]);
        let scalars: Vec<String> =
            [&first, &end, &one].iter().map(|name| g.add("Squeeze", &[name, &zero], &[])).collect();
        let positions = g.add("Range", &[&scalars[0], &scalars[1], &scalars[2]], &[]);
        let words = g.add("Gather", &[&word, "input_ids"], &[]);
        let types = g.add("Gather", &[&token_type, "token_type_ids"], &[]);
        let places = g.add("Gather", &[&position, &positions], &[]);
        let sum = g.add("Add", &[&words, &types], &[]);
        let sum = g.add("Add", &[&sum, &places], &[]);
        let mut x = norm(&mut g, &sum, "embeddings.LayerNorm");

        g.floats("one", &[1], &[1.0]);
        g.floats("hidden", &[1], &[f32::MIN]);
        let mask = g.add("Cast", &["attention_mask"], &[int("to", FLOAT as i64)]);
        let axes = g.integers(&[1, 2]);
        let mask = g.add("Unsqueeze", &[&mask, &axes], &[]);
        let mask = g.add("Sub", &["one", &mask], &[]);
        let mask = g.add("Mul", &[&mask, "hidden"], &[]);
        let head_dim = self.width / self.heads;
        g.floats("scale", &[1], &[(head_dim as f32).sqrt()]);
        g.floats("root_of_two", &[1], &[2f32.sqrt()]);
        g.floats("half", &[1], &[0.5]);
        let split = g.integers(&[0, 0, self.heads as i64, head_dim as i64]);
        let joined = g.integers(&[0, 0, self.width as i64]);
        for layer in 0..self.layers {
            let name = |part: &str| format!("encoder.layer.{layer}.{part}");
            let part = |g: &mut Graph, part: &str, order: &[i64]| {
                let all = linear(g, &x, &name(&format!("attention.self.{part}")));
                let heads = g.add("Reshape", &[&all, &split], &[]);
                g.add("Transpose", &[&heads], &[ints("perm", order)])
            };
            let q = part(&mut g, "query", &[0, 2, 1, 3]);
            let k = part(&mut g, "key", &[0, 2, 3, 1]);
            let v = part(&mut g, "value", &[0, 2, 1, 3]);
            let scores = g.add("MatMul", &[&q, &k], &[]);
            let scores = g.add("Div", &[&scores, "scale"], &[]);
            let scores = g.add("Add", &[&scores, &mask], &[]);
            let weights = g.add("Softmax", &[&scores], &[int("axis", -1)]);
            let mixed = g.add("MatMul", &[&weights, &v], &[]);
            let mixed = g.add("Transpose", &[&mixed], &[ints("perm", &[0, 2, 1, 3])]);
            let mixed = g.add("Reshape", &[&mixed, &joined], &[]);
            let mixed = linear(&mut g, &mixed, &name("attention.output.dense"));
            let sum = g.add("Add", &[&x, &mixed], &[]);
            let inner = norm(&mut g, &sum, &name("attention.output.LayerNorm"));
            let up = linear(&mut g, &inner, &name("intermediate.dense"));
            let erf = g.add("Div", &[&up, "root_of_two"], &[]);
            let erf = g.add("Erf", &[&erf], &[]);
            let erf = g.add("Add", &[&erf, "one"], &[]);
            let gelu = g.add("Mul", &[&up, &erf], &[]);
            let gelu = g.add("Mul", &[&gelu, "half"], &[]);
            let down = linear(&mut g, &gelu, &name("output.dense"));
            let sum = g.add("Add", &[&inner, &down], &[]);
            x = norm(&mut g, &sum, &name("output.LayerNorm"));
        }
        g.push(node("Identity", &[&x], &["last_hidden_state"], &[]));
        g
    }
}
