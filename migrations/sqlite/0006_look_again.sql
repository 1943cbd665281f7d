-- Files of these formats were not looked into before: what is known of such models is forgotten, and found anew when somebody asks.
delete from models where format in ('gguf', 'onnx');
