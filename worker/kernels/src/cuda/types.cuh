typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef float f32;

struct alignas(16) U4 { u32 x, y, z, w; };
struct alignas(16) F4 { f32 x, y, z, w; };
