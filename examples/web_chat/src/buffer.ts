// rsocket-js uses node's Buffer: esbuild puts this one in its place.
export { Buffer } from "buffer";
