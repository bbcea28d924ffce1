-- BENCH_BYTES: size of the tensor. One byte goes as JSON, more as a binary tensor, there and back.
local size = tonumber(os.getenv("BENCH_BYTES"))
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
if size == 1 then
  wrk.body = '{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7]}]}'
else
  local head = string.format(
    '{"inputs":[{"name":"x","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}],'
      .. '"outputs":[{"name":"y","parameters":{"binary_data":true}}]}', size, size)
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.headers["Inference-Header-Content-Length"] = tostring(#head)
  wrk.body = head .. string.rep("\7", size)
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format('\n{"requests":%d,"seconds":%f,"p50":%f,"p99":%f,"bytes":%d,"failed":%d}\n', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, summary.bytes,
    failed.connect + failed.read + failed.write + failed.status + failed.timeout))
end
