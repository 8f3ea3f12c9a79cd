package configs

// Machine is what a machine does in a second, for plans. "lockstep bench machine" measures and writes one. A rate is
// that of one card while all cards do the same.
type Machine struct {
	Name     string   `toml:"name"`     // what --machine calls it
	Device   string   `toml:"device"`   // kind of its devices: cuda or cpu
	Card     string   `toml:"card"`     // what the driver calls a card, or the processor
	Cards    int      `toml:"cards"`    // how many there are; 1 for a CPU, whose ranks share it
	Cores    int      `toml:"cores"`    // of the host
	Measured bool     `toml:"measured"` // false: from data sheets
	Date     string   `toml:"date"`     // of the measurement, or of the data sheets
	How      string   `toml:"how"`      // the command that measured it, and the software
	Assumed  []string `toml:"assumed"`  // keys that were not measured here, with where they are from

	Memory MachineMemory `toml:"memory"` // GiB
	// TFLOP/s of one card by kernels of Lockstep, once the time of their bytes at the rate of memory is taken off
	Rates MachineRates `toml:"rates"`
	Share MachineShare `toml:"share"` // measured speed of a whole step, as a share of what the rates make
	Links MachineLinks `toml:"links"` // between cards, GB/s for each card, with all at once
	// between the host's pinned memory and a card, GB/s for each card, with all at once
	Host MachineHost `toml:"host"`
}

// MachineMemory is in GiB.
type MachineMemory struct {
	Card      float64 `toml:"card"`      // of a card; of the CPU's machine
	Usable    float64 `toml:"usable"`    // what a run may take of it
	Workspace float64 `toml:"workspace"` // most that operations take for themselves, besides what is planned
	Host      float64 `toml:"host"`      // of the host
}

// MachineRates are in TFLOP/s, but for the last two.
type MachineRates struct {
	Dense             float64 `toml:"dense"`              // products with one matrix
	Grouped           float64 `toml:"grouped"`            // products with a matrix for each expert or head
	Attention         float64 `toml:"attention"`          // forward, its two products
	AttentionBackward float64 `toml:"attention_backward"` // the five of its gradients
	// 10^12 a second, of a key, row and head: exp2 and sums that no product hides
	Scores         float64 `toml:"scores"`
	ScoresBackward float64 `toml:"scores_backward"` // likewise, of gradients
	// of heads wider than 256 columns (absorbed latent attention), with their scores
	Latent         float64 `toml:"latent"`
	LatentBackward float64 `toml:"latent_backward"` // its gradients
	Recurrence     float64 `toml:"recurrence"`      // DeltaNet and Mamba, in fp32
	Memory         float64 `toml:"memory"`          // GB/s, read and written together, of a copy
	Call           float64 `toml:"call"`            // us of an operation that does nothing, in a sequence
}

// MachineShare is measured speed in parts of the speed that the rates make.
type MachineShare struct {
	Train   float64 `toml:"train"`   // a training step
	Forward float64 `toml:"forward"` // a forward of a full batch
	Decode  float64 `toml:"decode"`  // a decoding step
	// what the slowest of all cards at work, for which all wait, makes of one's
	Slowest float64 `toml:"slowest"`
}

// MachineLinks are between cards.
type MachineLinks struct {
	EachWay  float64 `toml:"each_way"`  // what a card gets while it sends nothing
	BothWays float64 `toml:"both_ways"` // what it gets while it sends as much
	Rows     float64 `toml:"rows"`      // what operations get that read another card's rows where they are
	Exchange float64 `toml:"exchange"`  // us of an exchange of one row
}

// MachineHost is between pinned memory and a card.
type MachineHost struct {
	ToCard   float64 `toml:"to_card"`   // alone
	FromCard float64 `toml:"from_card"` // alone
	Both     float64 `toml:"both"`      // each way, with both at once
	Update   float64 `toml:"update"`    // G parameters/s of AdamW by all cores of the host, in its memory
}
