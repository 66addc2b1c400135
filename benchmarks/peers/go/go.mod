module peer

go 1.19

require (
	github.com/jjeffcaii/reactor-go v0.5.5
	github.com/rsocket/rsocket-go v0.8.12
)
