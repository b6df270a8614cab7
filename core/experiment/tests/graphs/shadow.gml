# As in Shadow's documentation, with a comment.
graph [
  directed 0
  node [ id 0 label "client &amp; co" host_bandwidth_up "20 Mbit" host_bandwidth_down "100 Mbit" ]
  node [
    id 1
    host_bandwidth_down "1 Gbit"
    host_bandwidth_up "1 Gbit"
    graphics [ x 1.0 y 2.0 ]
  ]
  edge [ source 0 target 0 latency "5 ms" ]
  edge [ source 0 target 1 latency "50 ms" packet_loss 0.01 jitter "0 ms" ]
]
